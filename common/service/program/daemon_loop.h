// What a daemon's main thread does while the others work: signals, systemd, counts of the log.
//
//   SIGTERM, SIGINT   stop: what is under way ends, for --stop-timeout at most; exit status 0
//   the same again    stop without grace: what waits for somebody is given up, what writes ends
//   SIGHUP            read configuration and credentials again, go on with what can be changed
//   broken            what only a new process can mend (a lost GPU): stop as for SIGTERM, exit
//   status 1
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/pulse.h"
#include "common/base/status.h"
#include "common/service/program/shutdown_signal.h"

namespace dws {

// A daemon that runs. Functions are called on the main thread but where it says otherwise.
struct RunningDaemon {
  // Ends it. Work under way may take `grace`; memory and files are whole however it ends. Called
  // once, on a thread of its own.
  std::function<void(std::chrono::milliseconds grace)> stop;
  // While `stop` runs: the grace is over.
  std::function<void()> end_grace;
  // A line for systemctl: how it is.
  std::function<std::string()> status_line;
  // Why this process can never work again, though a new one may; OK: it can.
  std::function<Status()> broken;
  // Reads certificates, keys and the like again; an error leaves the old ones in force.
  std::function<Status()> reload_credentials;
  // Work whose getting stuck is worse than a restart.
  std::vector<WatchedWork> vital;
  // Called every second or so while it runs: what comes with time alone. May be empty.
  std::function<void()> tick = {};
};

class DaemonLoop {
 public:
  struct Options {
    std::chrono::milliseconds stop_timeout;
    std::chrono::milliseconds stall_timeout;
  };
  // `reload` reads the configuration again and applies what can be applied while running.
  DaemonLoop(const RunningDaemon& daemon, ShutdownSignal& signals, std::function<void()> reload,
             const Options& options);

  // Returns when the daemon has stopped: OK, or what had broken it.
  Status Run();

 private:
  // Waits for a signal or the next tick, and does what each tick does.
  std::optional<int> Step();
  void FeedWatchdog();
  void TellStatus(const std::string& line);
  void Reload();
  void Stop();

  const RunningDaemon& daemon_;
  ShutdownSignal& signals_;
  const std::function<void()> reload_;
  const Options options_;
  const RealClock clock_;
  PulseWatch watch_;
  std::optional<Duration> feed_interval_;
  TimePoint next_feed_;
  std::string told_status_;
  std::optional<std::string> told_stuck_;
};

}  // namespace dws
