#include "common/service/grpc/heap_trimmer.h"

#include <malloc.h>

namespace dws {

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
