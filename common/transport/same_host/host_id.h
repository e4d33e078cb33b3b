// Identifies this host: processes with the same id, if it is not empty, share a kernel.
#pragma once

#include <string>
#include <string_view>

namespace dws {

// Returns the id of the kernel's boot, in this process's view. Empty: it cannot be read.
std::string HostId();
// Returns whether who says `host` is on this host, which says `own` of itself. The kernel's id is
// always right: receivers say it.
inline bool IsThisHost(std::string_view host, std::string_view own) {
  return !host.empty() && (host == own || host == HostId());
}

}  // namespace dws
