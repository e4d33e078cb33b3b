// How much memory this process may still take. The kernel grants more than there is, and ends some
// process when that is used: whoever is about to fill gigabytes asks first.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace dws {

// In bytes: what this host has left (/proc/meminfo), or the control groups of this process allow, a
// container's for example, if that is less; the largest number if nothing is said. `root`: of the
// files read.
uint64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace dws
