// Returns freed memory to the system. After thousands of short connections the freed blocks lie
// between blocks in use, and glibc does not return them by itself.
#pragma once

#include <chrono>
#include <cstddef>

#include "common/base/threads/loop_thread.h"

namespace dws {

// Lifecycle: runs a thread that checks the heap once per `interval`, until the destructor.
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
