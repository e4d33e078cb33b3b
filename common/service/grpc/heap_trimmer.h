// Gives memory back that the allocator keeps: after thousands of connections that came and went,
// freed pieces lie between those in use, and glibc returns nothing by itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <thread>

#include "common/base/mutex.h"

namespace dws {

// Lifecycle: a thread that looks at the heap now and then, from construction to destruction.
class HeapTrimmer {
 public:
  // Gives back what is free when that is more than `free_bytes_max`.
  explicit HeapTrimmer(std::chrono::milliseconds interval = std::chrono::seconds(10),
                       size_t free_bytes_max = size_t{32} << 20);
  ~HeapTrimmer();

 private:
  void Run();

  const std::chrono::milliseconds interval_;
  const size_t free_bytes_max_;
  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace dws
