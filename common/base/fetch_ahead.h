// Memory waits hidden behind arithmetic: what is read next is fetched into the second-level cache,
// a few cache lines at each step of a loop that works on what is in a cache already. Fetched all at
// once, it would only make that loop wait.
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
