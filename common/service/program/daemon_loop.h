// What a daemon's main thread does while the others work: signals, systemd, counts of the log.
//
//   SIGTERM, SIGINT   stop: work in progress has at most --stop-timeout to end; exit status 0
//   the same again    stop without grace: waits are given up, writes in progress are completed
//   owner ended       (--owner-pid) as for SIGTERM
//   SIGHUP            read configuration and credentials again, apply what can be changed
//   broken            a fault that only a new process can repair (a lost GPU): stop as for SIGTERM,
//                     exit status 1
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/liveness.h"
#include "common/service/program/daemon.h"
#include "common/service/program/shutdown_signal.h"

namespace dws {

// Runs until the daemon has stopped. `daemon` and `signals` must outlive it. Threads: the main
// thread.
class DaemonLoop {
 public:
  struct Options {
    std::chrono::milliseconds stop_timeout;
    std::chrono::milliseconds stall_timeout;
    // The process that started this one and that it must not outlive; 0: none.
    pid_t owner_pid = 0;
  };
  // `reload` reads the configuration again and applies what can be applied while running.
  DaemonLoop(Daemon& daemon, ShutdownSignal& signals, std::function<void()> reload,
             const Options& options);

  // Returns when the daemon has stopped: OK, or the error of `broken`.
  Status Run();

 private:
  // Waits for a signal or the next tick, then does the work of a tick. Returns the signal's number.
  std::optional<int> Step();
  // Returns whether there is an owner, and it has ended.
  bool OwnerEnded() const;
  void FeedWatchdog();
  void TellStatus(const std::string& line);
  void Reload();
  void Stop();

  Daemon& daemon_;
  ShutdownSignal& signals_;
  const std::function<void()> reload_;
  const Options options_;
  const RealClock clock_;
  LivenessWatch watch_;
  std::optional<Duration> feed_interval_;
  TimePoint next_feed_;
  std::string told_status_;
  std::optional<std::string> told_stuck_;
};

}  // namespace dws
