// Controls when freed memory goes back to the system. By default glibc gives back the end of a
// thread's heap once 128 KiB of it are free, so bytes that arrive over TCP land in pages that the
// kernel has to clear first: half of a receiver's time would be spent in the kernel. On the other
// hand it never gives back memory between blocks in use, for example after thousands of short
// connections.
#pragma once

#include <chrono>
#include <cstddef>

#include "common/base/threads/loop_thread.h"

namespace dws {

// What the allocator keeps of freed memory at the ends of its heaps, for what arrives next: at most
// kKeptBytesMax in each of kHeapsMax heaps, which all threads share.
inline constexpr int kKeptBytesMax = 16 << 20;
inline constexpr int kHeapsMax = 8;

// Tells glibc's allocator to keep freed memory, for the whole process; this overrides glibc's
// environment variables. Call it before the first thread starts: existing heaps do not change.
void KeepFreedMemory();

// Lifecycle: runs a thread that checks the heap once per `interval`, until the destructor.
class HeapTrimmer {
 public:
  // Returns free memory between blocks in use to the system if the free memory, or the memory
  // returned before, is more than `free_bytes_max`.
  explicit HeapTrimmer(std::chrono::milliseconds interval = std::chrono::seconds(10),
                       size_t free_bytes_max = size_t{32} << 20);

 private:
  void Trim() const;

  const size_t free_bytes_max_;
  LoopThread loop_;
};

}  // namespace dws
