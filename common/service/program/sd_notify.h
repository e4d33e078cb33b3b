// Reports the daemon's state to systemd (Type=notify) over the datagram protocol of sd_notify(3):
// lines of NAME=VALUE to the unix socket that NOTIFY_SOCKET names; a leading "@" means an abstract
// socket. Without the variable, all calls do nothing.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace dws {

// Each call sends one datagram and ignores errors: the daemon behaves the same without a
// supervisor. Never blocks. Threads: safe from any.

// The daemon is up, or has finished reloading. Also reports the daemon's process id.
void NotifyReady();
// One line for `systemctl status`; line breaks in `text` become spaces.
void NotifyStatus(std::string_view text);
// Reports that the configuration is being read again; NotifyReady must follow.
void NotifyReloading();
void NotifyStopping();
// Feeds the watchdog. See WatchdogInterval.
void NotifyWatchdog();

// The time within which systemd expects NotifyWatchdog: WATCHDOG_USEC, if it is meant for this
// process; nullopt when systemd expects no calls. Call it at half that interval.
std::optional<std::chrono::microseconds> WatchdogInterval();

}  // namespace dws
