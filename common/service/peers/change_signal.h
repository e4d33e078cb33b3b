// "Something changed, look again": wakes the threads that decide. Carries no data; a thread that
// wakes reads the state.
#pragma once

#include <cstdint>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Threads: safe from any; any number may wait.
class ChangeSignal {
 public:
  void Notify() {
    {
      MutexLock lock(mutex_);
      ++changes_;
    }
    changed_.NotifyAll();
  }

  // Waits until the number of changes is above `seen`, at most `timeout`; may return earlier.
  // Returns the number of changes so far.
  uint64_t WaitBeyond(uint64_t seen, Duration timeout) {
    MutexLock lock(mutex_);
    if (changes_ <= seen) changed_.WaitFor(mutex_, timeout);
    return changes_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t changes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace dws
