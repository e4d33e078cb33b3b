#include "common/base/failpoint.h"

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
    DWS_CHECK(action == "kill" || action == "error");
    if (entry.substr(0, colon) != name) continue;
    found = action == "kill" ? FailpointAction::kKill : FailpointAction::kError;
  }
  return found;
}

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
    case FailpointAction::kError:
      return InternalError("failpoint {} is armed", name);
  }
  return OkStatus();
}

}  // namespace dws
