// When freed memory goes back to the system. Left to itself, glibc gives back the end of a heap as
// soon as it is free, so whatever comes over TCP arrives in pages that the kernel has to clear
// first: half of a receiver's time in the kernel. On the other hand it never gives back what lies
// between blocks in use, as after thousands of short connections.
#pragma once

#include <chrono>
#include <cstddef>

#include "common/base/threads/loop_thread.h"

namespace dws {

// Lifecycle: one per process; runs a thread that checks the heap once per `interval`, until the
// destructor. What it tells the allocator stays.
class HeapTrimmer {
 public:
  // Returns free memory to the system when it is more than `free_bytes_max`.
  explicit HeapTrimmer(std::chrono::milliseconds interval = std::chrono::seconds(10),
                       size_t free_bytes_max = size_t{32} << 20);

 private:
  void Trim() const;

  const size_t free_bytes_max_;
  LoopThread loop_;
};

}  // namespace dws
