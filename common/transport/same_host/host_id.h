// Identifies this host: processes with the same id, if it is not empty, share a kernel.
#pragma once

#include <string>

namespace dws {

// Returns the id of the kernel's boot, in this process's view. Empty: it cannot be read.
std::string HostId();

}  // namespace dws
