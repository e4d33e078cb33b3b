// Tells systemd how the daemon is (Type=notify). Without systemd (no NOTIFY_SOCKET) nothing
// happens.
#pragma once

#include <string>

namespace dws {

void NotifyReady();
void NotifyStopping();
// One line for `systemctl status`.
void NotifyStatus(const std::string& text);

}  // namespace dws
