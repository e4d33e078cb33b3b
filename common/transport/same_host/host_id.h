// Which host this is: processes with the same id, not empty, share a kernel.
#pragma once

#include <string>

namespace dws {

// Of the kernel's boot, in this process's view. Empty: it cannot be read.
std::string HostId();

}  // namespace dws
