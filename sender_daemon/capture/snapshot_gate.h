// Keeps captures and readers of the snapshot apart. One capture at a time, any number of readers
// between captures. A capture waits at most for the current reads and for one read of each reader
// that was already waiting; otherwise captures have priority. Readers keep each read short
// (full_reader.cc).
#pragma once

#include <cstddef>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Threads: safe from any. Begin and End may be called from different threads.
class SnapshotGate {
 public:
  void BeginCapture();
  void EndCapture();

  // DEADLINE_EXCEEDED: captures left no room within `timeout`.
  Status BeginRead(Duration timeout);
  void EndRead();

 private:
  bool ReadMayStart() const REQUIRES(mutex_) {
    return !capturing_ && (captures_waiting_ == 0 || turns_ > 0);
  }

  Mutex mutex_;
  CondVar changed_;
  bool capturing_ GUARDED_BY(mutex_) = false;
  size_t captures_waiting_ GUARDED_BY(mutex_) = 0;
  size_t readers_ GUARDED_BY(mutex_) = 0;
  size_t readers_waiting_ GUARDED_BY(mutex_) = 0;
  size_t turns_ GUARDED_BY(mutex_) = 0;  // reads let in before the next capture
};

}  // namespace dws
