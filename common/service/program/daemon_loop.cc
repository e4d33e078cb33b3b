#include "common/service/program/daemon_loop.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>
#include <utility>

#include "common/base/log/log.h"
#include "common/service/program/sd_notify.h"
#include "proto/admin.pb.h"

namespace dws {
namespace {

// How often the status line and the log's counts are checked.
constexpr std::chrono::milliseconds kTick{1000};

// Absent receivers are skipped, so that a receiver that was removed does not appear as the slowest.
std::string SenderLine(const v1::SenderStatus& sender) {
  uint64_t slowest = sender.newest_version();
  int present = 0;
  for (const v1::ReceiverPeer& peer : sender.receivers()) {
    if (!peer.present()) continue;
    ++present;
    slowest = std::min<uint64_t>(slowest, peer.committed_version());
  }
  return fmt::format(
      "version {}, receivers {}{}", sender.newest_version(), present,
      slowest < sender.newest_version() ? fmt::format(", slowest at {}", slowest) : "");
}

std::string ReceiverLine(const v1::ReceiverStatus& receiver) {
  const std::string stage =
      receiver.stage().empty() || receiver.stage() == "idle" ? "" : ", " + receiver.stage();
  const std::string lag =
      receiver.has_version_lag() ? fmt::to_string(receiver.version_lag()) : "unknown";
  const std::string line =
      fmt::format("version {}, lag {}{}", receiver.committed_version(), lag, stage);
  if (receiver.has_follower()) return line;  // it has no engine ranks
  const auto attached =
      std::count_if(receiver.engine_ranks().begin(), receiver.engine_ranks().end(),
                    [](const auto& rank) { return rank.attached(); });
  return fmt::format("{}, engine ranks {} of {}", line, attached, receiver.engine_ranks_size());
}

// For `systemctl status`: "version 7, lag 0, engine ranks 2 of 2", "version 7, receivers 3, slowest
// at 5", or "not ready: " and the reason.
std::string StatusLine(const v1::StatusReply& status) {
  std::string line = "running";
  if (status.has_sender()) line = SenderLine(status.sender());
  if (status.has_receiver()) line = ReceiverLine(status.receiver());
  if (!status.ready()) return fmt::format("not ready: {} ({})", status.reason(), line);
  return status.reason().empty() ? line : fmt::format("{}; {}", line, status.reason());
}

}  // namespace

DaemonLoop::DaemonLoop(Daemon& daemon, ShutdownSignal& signals, std::function<void()> reload,
                       const Options& options)
    : daemon_(daemon),
      signals_(signals),
      reload_(std::move(reload)),
      options_(options),
      watch_(daemon.VitalWork(), options.stall_timeout),
      next_feed_(clock_.Now()) {
  if (const auto interval = WatchdogInterval()) feed_interval_ = *interval / 2;
}

Status DaemonLoop::Run() {
  TellStatus(StatusLine(daemon_.status()));
  NotifyReady();
  while (true) {
    if (OwnerEnded()) {
      LogInfo("stopping", {{"ended_owner_pid", options_.owner_pid},
                           {"grace_seconds", ToSeconds(options_.stop_timeout)}});
      Stop();
      return OkStatus();
    }
    const std::optional<int> number = Step();
    if (number == SIGHUP) {
      Reload();
    } else if (number.has_value()) {
      LogInfo("stopping",
              {{"signal", *number}, {"grace_seconds", ToSeconds(options_.stop_timeout)}});
      Stop();
      return OkStatus();
    }
    if (const Status broken = daemon_.broken(); !broken.ok()) {
      LogError("broken",
               {{"reason", Message(broken)}, {"grace_seconds", ToSeconds(options_.stop_timeout)}});
      Stop();
      return broken;
    }
    daemon_.Tick();
    TellStatus(StatusLine(daemon_.status()));
  }
}

std::optional<int> DaemonLoop::Step() {
  Duration wait = kTick;
  // While the daemon is stuck, the next feed is overdue, so there is no reason to wake up for it.
  if (feed_interval_ && !told_stuck_) {
    wait = std::min<Duration>(wait, next_feed_ - clock_.Now());
  }
  const std::optional<int> number = signals_.WaitFor(
      std::chrono::ceil<std::chrono::milliseconds>(std::max<Duration>(wait, Duration::zero())));
  FeedWatchdog();
  LogRepeatCounts();
  return number;
}

// The kernel gives an orphan another parent. Unlike PR_SET_PDEATHSIG this does not depend on the
// thread that started the daemon, which may end long before its process.
bool DaemonLoop::OwnerEnded() const {
  return options_.owner_pid != 0 && ::getppid() != options_.owner_pid;
}

// While the daemon is stuck the watchdog is not fed, so systemd kills and restarts the daemon.
// Without systemd the daemon only logs it.
void DaemonLoop::FeedWatchdog() {
  const TimePoint now = clock_.Now();
  std::optional<std::string> stuck = watch_.Stuck(now);
  if (stuck != told_stuck_) {
    told_stuck_ = stuck;
    if (stuck) {
      LogError("stuck", {{"work", *stuck},
                         {"seconds", ToSeconds(options_.stall_timeout)},
                         {"watchdog", feed_interval_.has_value()}});
    } else {
      LogWarning("recovered");
    }
  }
  if (!feed_interval_ || now < next_feed_ || stuck) return;
  NotifyWatchdog();
  next_feed_ = now + *feed_interval_;
}

void DaemonLoop::TellStatus(const std::string& line) {
  if (line == told_status_) return;
  told_status_ = line;
  NotifyStatus(line);
}

void DaemonLoop::Reload() {
  NotifyReloading();
  reload_();
  if (const Status status = daemon_.ReloadCredentials(); !status.ok()) {
    LogError("credentials_kept", {{"reason", Message(status)}});
  }
  NotifyReady();
}

void DaemonLoop::Stop() {
  NotifyStopping();
  TellStatus("stopping: work under way may finish");
  std::thread stopping([this] {
    daemon_.Stop(options_.stop_timeout);
    signals_.Trigger();
  });
  bool hurried = false;
  while (true) {
    const std::optional<int> number = Step();
    if (number == 0) break;
    if (!number.has_value() || number == SIGHUP || hurried) continue;
    hurried = true;
    LogWarning("stopping_now", {{"signal", *number}});
    TellStatus("stopping now: writes finish, waits are given up");
    daemon_.EndGrace();
  }
  stopping.join();
}

}  // namespace dws
