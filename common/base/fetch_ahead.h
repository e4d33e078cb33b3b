// Hides memory latency behind arithmetic: each step of a loop that works on cached data also
// fetches a few cache lines of the data that is read next into the second-level cache. Fetching all
// of it at once would only make that loop wait.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dws {

// A stretch of memory to fetch, from its first line on. Only hints: the memory need not exist.
struct FetchAhead {
  static constexpr size_t kLineBytes = 64;

  // Fetches the next `lines` lines that are left.
  void Fetch(uint32_t lines) {
    for (uint32_t i = 0; i < lines && next < end; ++i, next += kLineBytes) {
      __builtin_prefetch(reinterpret_cast<const void*>(next), 0, 2);
    }
  }

  uintptr_t next = 0;
  uintptr_t end = 0;
};

}  // namespace dws
