#include "common/service/program/heap_trimmer.h"

#include <malloc.h>

namespace dws {
namespace {

// Larger blocks are mapped and unmapped one by one. glibc would adjust this limit by itself if it
// were not told when to trim.
constexpr int kMappedBytesMin = 4 << 20;

}  // namespace

void KeepFreedMemory() {
  // The allocators of sanitizers refuse.
  static_cast<void>(::mallopt(M_ARENA_MAX, kHeapsMax));
  static_cast<void>(::mallopt(M_TRIM_THRESHOLD, kKeptBytesMax));
  static_cast<void>(::mallopt(M_MMAP_THRESHOLD, kMappedBytesMin));
}

HeapTrimmer::HeapTrimmer(std::chrono::milliseconds interval, size_t free_bytes_max)
    : free_bytes_max_(free_bytes_max), loop_([this, interval] {
        Trim();
        return interval;
      }) {
  loop_.Start(interval);
}

// Trimming walks the whole heap under malloc's locks, so do it only when it can free much.
void HeapTrimmer::Trim() const {
  if (::mallinfo2().fordblks > free_bytes_max_) ::malloc_trim(0);
}

}  // namespace dws
