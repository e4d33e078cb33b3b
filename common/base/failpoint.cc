#include "common/base/failpoint.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "common/base/check.h"

namespace dws {

FailpointAction FindFailpoint(std::string_view armed, std::string_view name) {
  FailpointAction found = FailpointAction::kNone;
  while (!armed.empty()) {
    const size_t comma = armed.find(',');
    const std::string_view entry = armed.substr(0, comma);
    armed = comma == std::string_view::npos ? std::string_view() : armed.substr(comma + 1);

    const size_t colon = entry.find(':');
    DWS_CHECK(colon != std::string_view::npos && colon > 0);
    const std::string_view action = entry.substr(colon + 1);
    DWS_CHECK(action == "kill" || action == "error" || action == "hold");
    if (entry.substr(0, colon) != name) continue;
    found = action == "kill"    ? FailpointAction::kKill
            : action == "error" ? FailpointAction::kError
                                : FailpointAction::kHold;
  }
  return found;
}

namespace {

// Whoever waits for the file knows that the thread is here, and lets it go on.
void Hold() {
  static std::atomic<bool> held{false};
  if (held.exchange(true)) return;  // one thread, once
  const char* const path = std::getenv("DWS_FAILPOINT_HOLD");
  DWS_CHECK(path != nullptr);
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  ::close(fd);
  while (::access(path, F_OK) == 0) ::poll(nullptr, 0, 5);
}

}  // namespace

Status ReachFailpoint(std::string_view name) {
  const char* const armed = std::getenv("DWS_FAILPOINT");
  if (armed == nullptr) return OkStatus();
  switch (FindFailpoint(armed, name)) {
    case FailpointAction::kNone:
      return OkStatus();
    case FailpointAction::kKill:
      // Not abort(): no handler, no flush, no destructor, as a power cut would have it.
      std::raise(SIGKILL);
      return OkStatus();
    case FailpointAction::kHold:
      Hold();
      return OkStatus();
    case FailpointAction::kError:
      return InternalError("failpoint {} is armed", name);
  }
  return OkStatus();
}

}  // namespace dws
