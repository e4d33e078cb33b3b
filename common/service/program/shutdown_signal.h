// Waits for signals (to stop, to read the configuration again) and returns them as values, without
// a signal handler.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws {

// Lifecycle: call Install before any thread starts, because threads inherit the blocked signals.
// The signals stay blocked after destruction. Threads: Trigger from any, WaitFor from one.
class ShutdownSignal {
 public:
  // Blocks SIGTERM, SIGINT and SIGHUP for this thread and all it starts, and ignores SIGPIPE.
  static Result<ShutdownSignal> Install();

  // Returns the signal's number, 0 after Trigger, nullopt after `timeout`. Each signal is returned
  // once.
  std::optional<int> WaitFor(std::chrono::milliseconds timeout);

  // Ends a WaitFor from inside the process, after a permanent failure.
  void Trigger();

 private:
  ShutdownSignal(UniqueFd signals, UniqueFd trigger)
      : signals_(std::move(signals)), trigger_(std::move(trigger)) {}

  UniqueFd signals_;
  UniqueFd trigger_;
};

}  // namespace dws
