// The writes of one transfer to a receiver, at the pace of an egress limit.
#pragma once

#include <grpcpp/alarm.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "common/base/threads/mutex.h"
#include "common/service/grpc/egress_limit.h"

namespace dws {

// Lifecycle: of a reactor, which calls Cancel when its call is cancelled. Threads: one write at a
// time; Cancel and Hurry from any.
class PacedWrite {
 public:
  explicit PacedWrite(EgressLimit& limit) : limit_(limit) {}

  // Calls `write` when `bytes` may be sent: at once, or later on a thread of gRPC. After Cancel at
  // once, too: a write then ends the call.
  void At(uint64_t bytes, std::function<void()> write) {
    After(limit_.Reserve(bytes), std::move(write));
  }
  // Calls `write` after `wait`.
  void After(Duration wait, std::function<void()> write) {
    if (wait > Duration::zero()) {
      MutexLock lock(mutex_);
      if (!cancelled_) {
        const auto when = std::chrono::system_clock::now() +
                          std::chrono::duration_cast<std::chrono::system_clock::duration>(wait);
        write_ = std::move(write);
        return alarm_.Set(when, [this](bool) { Write(); });
      }
    }
    write();
  }
  void Cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    alarm_.Cancel();
  }
  // What waits is called now.
  void Hurry() {
    MutexLock lock(mutex_);
    alarm_.Cancel();
  }

 private:
  // The write may end, and the next one take its place, before it has returned: so it runs from
  // here.
  void Write() {
    std::function<void()> write;
    {
      MutexLock lock(mutex_);
      write = std::move(write_);
    }
    write();
  }

  EgressLimit& limit_;
  Mutex mutex_;
  bool cancelled_ GUARDED_BY(mutex_) = false;
  std::function<void()> write_ GUARDED_BY(mutex_);  // that waits for its time
  grpc::Alarm alarm_ GUARDED_BY(mutex_);
};

}  // namespace dws
