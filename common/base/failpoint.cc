#include "common/base/failpoint.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "common/base/check.h"

namespace dws {

ArmedFailpoint FindFailpoint(std::string_view armed, std::string_view name) {
  ArmedFailpoint found;
  while (!armed.empty()) {
    const size_t comma = armed.find(',');
    const std::string_view entry = armed.substr(0, comma);
    armed = comma == std::string_view::npos ? std::string_view() : armed.substr(comma + 1);

    const size_t colon = entry.find(':');
    DWS_CHECK(colon != std::string_view::npos && colon > 0);
    DWS_CHECK(IsFailpoint(entry.substr(0, colon)));
    const size_t at_sign = std::min(entry.find('@'), entry.size());
    const std::string_view action = entry.substr(colon + 1, at_sign - colon - 1);
    DWS_CHECK(action == "kill" || action == "error" || action == "hold");
    uint32_t at = 0;
    if (at_sign < entry.size()) {
      const char* const end = entry.data() + entry.size();
      const auto parsed = std::from_chars(entry.data() + at_sign + 1, end, at);
      DWS_CHECK(parsed.ec == std::errc() && parsed.ptr == end && at > 0);
    }
    if (entry.substr(0, colon) != name) continue;
    found = {.action = action == "kill"    ? FailpointAction::kKill
                       : action == "error" ? FailpointAction::kError
                                           : FailpointAction::kHold,
             .at = at};
  }
  return found;
}

namespace {

// How many times the failpoint has been reached, including this time.
uint32_t Reached(std::string_view name) {
  static std::array<std::atomic<uint32_t>, kFailpoints.size()> counts = {};
  const auto* const at = std::find(kFailpoints.begin(), kFailpoints.end(), name);
  DWS_CHECK(at != kFailpoints.end());
  return ++counts[static_cast<size_t>(at - kFailpoints.begin())];
}

// Creates the file and waits until it is removed. A test sees from the file that the thread
// is here, and removes it to let the thread continue.
void Hold() {
  static std::atomic<bool> held{false};
  if (held.exchange(true)) return;  // holds one thread, once
  const char* const path = std::getenv("DWS_FAILPOINT_HOLD");
  DWS_CHECK(path != nullptr);
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  ::close(fd);
  while (::access(path, F_OK) == 0) ::poll(nullptr, 0, 5);
}

FailpointHook& TheHook() {
  static FailpointHook hook;
  return hook;
}

}  // namespace

void SetFailpointHook(FailpointHook hook) { TheHook() = std::move(hook); }

Status ReachFailpoint(std::string_view name) {
  if (TheHook()) return TheHook()(name);
  const char* const armed = std::getenv("DWS_FAILPOINT");
  if (armed == nullptr) return OkStatus();
  const ArmedFailpoint found = FindFailpoint(armed, name);
  if (found.action == FailpointAction::kNone) return OkStatus();
  if (found.at > 0 && Reached(name) != found.at) return OkStatus();
  switch (found.action) {
    case FailpointAction::kNone:
      return OkStatus();
    case FailpointAction::kKill:
      // Not abort(): like a power cut, SIGKILL runs no handler, no flush and no destructor.
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
