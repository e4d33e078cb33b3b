// Receives the statuses of a daemon, and reconnects when the connection ends.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/base/unique_fd.h"
#include "proto/admin.pb.h"
#include "tools/dwsctl/client/admin_client.h"

namespace dws::dwsctl {

// News of the daemon with number `daemon`: a status, or the reason why there is none.
struct WatchEvent {
  size_t daemon = 0;
  std::variant<v1::StatusReply, Status> what;
};

// Carries events from the links to the display. Holds the newest kEventsMax; older ones are
// dropped. Threads: safe from any.
class WatchInbox {
 public:
  static constexpr size_t kEventsMax = 1024;

  static Result<std::unique_ptr<WatchInbox>> Create();
  void Push(WatchEvent event);
  // Takes all events, the oldest first; never waits.
  std::deque<WatchEvent> Take();
  // Readable when Take() has events.
  int fd() const { return signal_.get(); }

 private:
  explicit WatchInbox(UniqueFd signal) : signal_(std::move(signal)) {}
  const UniqueFd signal_;
  Mutex mutex_;
  std::deque<WatchEvent> events_ GUARDED_BY(mutex_);
};

// Watches one daemon. Lifecycle: runs a thread from construction to destruction. When a call ends
// it connects again after a delay that grows to kRetryMax. Threads: one at a time.
class WatchLink {
 public:
  static constexpr std::chrono::milliseconds kRetryMin{250};
  static constexpr std::chrono::milliseconds kRetryMax{2000};

  // `inbox` must outlive it; `daemon` is the number of its events. If the daemon sends nothing for
  // `silence_max`, the call is ended and repeated.
  WatchLink(size_t daemon, AdminClient client, std::chrono::duration<double> interval,
            std::chrono::milliseconds silence_max, WatchInbox& inbox);
  ~WatchLink();
  WatchLink(const WatchLink&) = delete;
  WatchLink& operator=(const WatchLink&) = delete;

  // Ends a call that has been silent for too long. Returns how long from now it may stay silent.
  std::chrono::milliseconds CheckSilence();

 private:
  // Makes one call and reads until it ends. Returns the time until the next call.
  Duration Watch();
  void Heard();

  const size_t daemon_;
  AdminClient client_;
  const std::chrono::duration<double> interval_;
  const std::chrono::milliseconds silence_max_;
  WatchInbox& inbox_;
  Hangup hangup_;
  Mutex mutex_;
  std::chrono::steady_clock::time_point heard_ GUARDED_BY(mutex_);
  std::chrono::milliseconds retry_ = kRetryMin;  // of the thread
  LoopThread loop_;
};

}  // namespace dws::dwsctl
