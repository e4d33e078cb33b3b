#include "common/service/grpc/heap_trimmer.h"

#include <malloc.h>

namespace dws {

HeapTrimmer::HeapTrimmer(std::chrono::milliseconds interval, size_t free_bytes_max)
    : interval_(interval), free_bytes_max_(free_bytes_max), thread_([this] { Run(); }) {}

HeapTrimmer::~HeapTrimmer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stopped_.NotifyAll();
  thread_.join();
}

void HeapTrimmer::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!stopping_) stopped_.WaitFor(mutex_, interval_);
      if (stopping_) return;
    }
    // Trimming walks the whole heap under malloc's locks, so do it only when it can free much.
    if (::mallinfo2().fordblks > free_bytes_max_) ::malloc_trim(0);
  }
}

}  // namespace dws
