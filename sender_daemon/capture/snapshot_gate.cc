#include "sender_daemon/capture/snapshot_gate.h"

#include <algorithm>
#include <chrono>

#include "common/base/check.h"

namespace dws {

void SnapshotGate::BeginCapture() {
  MutexLock lock(mutex_);
  ++captures_waiting_;
  while (capturing_ || readers_ > 0 || turns_ > 0) changed_.Wait(mutex_);
  --captures_waiting_;
  capturing_ = true;
}

void SnapshotGate::EndCapture() {
  MutexLock lock(mutex_);
  DWS_CHECK(capturing_ && readers_ == 0);
  capturing_ = false;
  // Each waiting reader gets one read before the next capture, so that captures do not starve it.
  turns_ = readers_waiting_;
  changed_.NotifyAll();
}

Status SnapshotGate::BeginRead(Duration timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  ++readers_waiting_;
  while (!ReadMayStart()) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) {
      --readers_waiting_;
      turns_ = std::min(turns_, readers_waiting_);
      changed_.NotifyAll();
      return DeadlineExceededError("the snapshot was being captured for {:.1f} s without a gap",
                                   ToSeconds(timeout));
    }
    changed_.WaitFor(mutex_, left);
  }
  --readers_waiting_;
  if (turns_ > 0) --turns_;
  // Otherwise a capture would wait for a reader that never comes.
  DWS_CHECK(turns_ <= readers_waiting_);
  ++readers_;
  return OkStatus();
}

void SnapshotGate::EndRead() {
  MutexLock lock(mutex_);
  DWS_CHECK(readers_ > 0 && !capturing_);
  --readers_;
  changed_.NotifyAll();
}

}  // namespace dws
