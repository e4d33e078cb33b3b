// Says whether a daemon is ready and, if not, gives the reason as text. /readyz, grpc.health.v1 and
// the status RPC show it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/strong_type.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Starts not ready, with the reason "starting". Stopping is final.
// Threads: safe from any.
class Lifecycle {
 public:
  struct State {
    bool ready = false;
    bool stopping = false;
    std::string reason;  // empty when ready

    friend bool operator==(const State&, const State&) = default;
  };
  using Listener = std::function<void(const State&)>;
  using ListenerId = StrongType<struct ListenerIdTag, uint64_t>;

  Lifecycle();

  void SetReady();
  // `reason` tells the operator what is missing and from whom ("waiting for engine rank 1 of 2 to
  // attach").
  void SetNotReady(std::string reason);
  void SetStopping();

  State state() const;

  // Calls `listener` with the current state before returning, then after each change, one call at a
  // time, never under a lock. Changes in quick succession may be merged into one call; the last
  // state is always delivered. A listener must not wait for a change made by another thread.
  ListenerId AddListener(Listener listener);
  // When this returns, no call of the listener is running and none follows. A listener that removes
  // itself is the exception: its current call is still running.
  void RemoveListener(ListenerId id);

 private:
  struct Entry {
    ListenerId id;
    Listener listener;
    uint64_t seen = 0;  // the last change that was passed to it
  };

  void Change(State state);
  void Deliver() REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar delivered_;
  State state_ GUARDED_BY(mutex_);
  uint64_t change_ GUARDED_BY(mutex_) = 1;
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
  bool delivering_ GUARDED_BY(mutex_) = false;
  std::thread::id deliverer_ GUARDED_BY(mutex_);
};

}  // namespace dws
