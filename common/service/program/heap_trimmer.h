// When freed memory goes back to the system. Left to itself, glibc gives back the end of a thread's
// heap once 128 KiB of it are free, so whatever arrives over TCP comes into pages that the kernel
// has to clear first: half of a receiver's time in the kernel. On the other hand it never gives back
// what lies between blocks in use, as after thousands of short connections.
#pragma once

#include <chrono>
#include <cstddef>

#include "common/base/threads/loop_thread.h"

namespace dws {

// What the allocator keeps of freed memory at the ends of its heaps, for what arrives next: at most
// kKeptBytesMax in each of kHeapsMax heaps, which all threads share.
inline constexpr int kKeptBytesMax = 16 << 20;
inline constexpr int kHeapsMax = 8;

// Tells glibc's allocator so, for the whole process; what its environment variables say does not
// count any more. Before the first thread is started: heaps that exist stay.
void KeepFreedMemory();

// Lifecycle: runs a thread that checks the heap once per `interval`, until the destructor.
class HeapTrimmer {
 public:
  // Returns free memory between blocks in use to the system, when what is free, or was returned
  // before, is more than `free_bytes_max`.
  explicit HeapTrimmer(std::chrono::milliseconds interval = std::chrono::seconds(10),
                       size_t free_bytes_max = size_t{32} << 20);

 private:
  void Trim() const;

  const size_t free_bytes_max_;
  LoopThread loop_;
};

}  // namespace dws
