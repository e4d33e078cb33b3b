// Tells systemd how the daemon is (Type=notify), over the datagram protocol of sd_notify(3): lines
// of NAME=VALUE to the unix socket that NOTIFY_SOCKET names; "@" begins an abstract one. Without
// the variable nothing happens.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace dws {

// Each is one datagram. Sent and forgotten: whether a supervisor listens changes nothing of what
// the daemon does. Never blocks. Threads: from any.

// Up, or up again after NotifyReloading; says which process is the daemon.
void NotifyReady();
// One line for `systemctl status`; what would end the line is a space.
void NotifyStatus(std::string_view text);
// The configuration is being read again; NotifyReady follows.
void NotifyReloading();
void NotifyStopping();
// Still alive. See WatchdogInterval.
void NotifyWatchdog();

// How often systemd wants NotifyWatchdog: WATCHDOG_USEC, when it is meant for this process; nullopt
// when it wants none. Half of it is the time between two calls.
std::optional<std::chrono::microseconds> WatchdogInterval();

}  // namespace dws
