// Ends a waiting call when the user presses ^C or when the daemon is silent for too long.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "common/base/unique_fd.h"
#include "tools/dwsctl/base/interrupts.h"
#include "tools/dwsctl/client/admin_client.h"

namespace dws::dwsctl {

// Watches one call. Lifecycle: runs a thread from Start until the destructor. Threads: safe from
// any.
class CallWatchdog {
 public:
  enum class Cause { kNone, kInterrupt, kSilence };

  // `interrupts` and `hangup` must outlive it. RESOURCE_EXHAUSTED: no free descriptor.
  static Result<std::unique_ptr<CallWatchdog>> Start(Interrupts& interrupts, Hangup& hangup,
                                                     std::chrono::milliseconds silence_max);
  ~CallWatchdog();

  // Call it when the daemon has sent something.
  void Heard();
  // Returns why the watchdog ended the call, if it did.
  Cause cause() const { return cause_; }

 private:
  CallWatchdog(UniqueFd stop, Interrupts& interrupts, Hangup& hangup,
               std::chrono::milliseconds silence_max);
  void Run();

  const UniqueFd stop_;
  Interrupts& interrupts_;
  Hangup& hangup_;
  const std::chrono::milliseconds silence_max_;
  std::atomic<std::chrono::steady_clock::time_point> heard_;
  std::atomic<Cause> cause_ = Cause::kNone;
  std::thread thread_;  // last: it uses the others
};

}  // namespace dws::dwsctl
