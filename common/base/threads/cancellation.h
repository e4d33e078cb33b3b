// Ends the waits of several threads for good: one for all that a daemon has to give up when it
// stops.
#pragma once

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Threads: safe from any.
class Cancellation {
 public:
  void Cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    changed_.NotifyAll();
  }
  bool cancelled() const {
    MutexLock lock(mutex_);
    return cancelled_;
  }
  // Sleeps, not longer than until Cancel. Returns false if it was called.
  bool Sleep(Duration time) {
    MutexLock lock(mutex_);
    if (!cancelled_ && time > Duration::zero()) changed_.WaitFor(mutex_, time);
    return !cancelled_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool cancelled_ GUARDED_BY(mutex_) = false;
};

}  // namespace dws
