// Tells how much memory this process may still take. The kernel grants more than there is, and
// kills a process when that is used up. So code that is about to fill gigabytes asks first.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace dws {

// Returns the bytes that are left on this host (/proc/meminfo), or the bytes that the control
// groups of this process (for example of a container) allow, if that is less. Returns the largest
// number if neither is stated. `root`: prefix of the paths of the files.
uint64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace dws
