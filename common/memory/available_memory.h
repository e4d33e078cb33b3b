// How much memory this host has left. The kernel grants more than it has, and ends some process when
// that is used: whoever is about to fill gigabytes asks first.
#pragma once

#include <cstdint>
#include <limits>

namespace dws {

// In bytes, as /proc/meminfo says; the largest number if it says nothing.
uint64_t AvailableMemoryBytes();

}  // namespace dws
