#include "common/service/sd_notify.h"

#include <systemd/sd-daemon.h>

namespace dws {

// The results are ignored: whether a supervisor listens changes nothing of what the daemon does.
void NotifyReady() { static_cast<void>(::sd_notify(0, "READY=1")); }

void NotifyStopping() { static_cast<void>(::sd_notify(0, "STOPPING=1")); }

void NotifyStatus(const std::string& text) {
  static_cast<void>(::sd_notify(0, ("STATUS=" + text).c_str()));
}

}  // namespace dws
