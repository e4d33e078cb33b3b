// MemAvailable counts what the kernel would take back from its caches.
#include "common/memory/available_memory.h"

#include <cstdio>
#include <fstream>
#include <string>

namespace dws {

uint64_t AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return kib * 1024;
  }
  return std::numeric_limits<uint64_t>::max();
}

}  // namespace dws
