// All open LatestStreams of one kind of call: limits their number and ends them. Used by
// admin_service.cc.
#pragma once

#include <memory>
#include <set>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/grpc/latest_stream.h"

namespace dws {

// The open streams of one kind: counts them, and ends those whose callers do not read. Lifecycle:
// outlives its streams. Call EndAll, then shut the server down. Threads: safe from any.
template <typename Message>
class LatestStreams {
 public:
  using Ptr = typename LatestStream<Message>::Ptr;

  LatestStreams(size_t count_max, const Clock& clock) : count_max_(count_max), clock_(clock) {}

  // Opens a stream for a new call. False: the call is refused (RESOURCE_EXHAUSTED, UNAVAILABLE
  // after EndAll), and the stream is already closed with the reason.
  std::pair<Ptr, bool> Open(grpc::CallbackServerContext* context) {
    const Ptr stream = LatestStream<Message>::Make(context, clock_, [this](const Ptr& done) {
      MutexLock lock(mutex_);
      open_.erase(done);
      ended_.NotifyAll();
    });
    Status refused;
    {
      MutexLock lock(mutex_);
      if (ending_) {
        refused = UnavailableError("the daemon is stopping");
      } else if (open_.size() >= count_max_) {
        refused = ResourceExhaustedError("{} callers are served already, at most {} at a time",
                                         open_.size(), count_max_);
      }
      open_.insert(stream);
    }
    if (!refused.ok()) stream->Close(refused);
    return {stream, refused.ok()};
  }

  // Cancels streams that have stalled for longer than `patience`. It does so under the lock, so
  // that no call is done meanwhile. That cannot deadlock: gRPC runs reactions on its own threads.
  void CancelStalled(Duration patience) {
    MutexLock lock(mutex_);
    for (const Ptr& stream : open_) {
      if (stream->stalled() > patience) stream->Cancel();
    }
  }

  // Ends all streams and refuses new ones; streams not read within `patience` are cancelled.
  // Returns when all are done.
  void EndAll(const Status& reason, Duration patience) {
    std::set<Ptr> open;
    {
      MutexLock lock(mutex_);
      ending_ = true;
      open = open_;
    }
    for (const Ptr& stream : open) stream->Abort(reason);
    open.clear();
    const TimePoint deadline = clock_.Now() + patience;
    MutexLock lock(mutex_);
    while (!open_.empty() && clock_.Now() < deadline) {
      ended_.WaitFor(mutex_, deadline - clock_.Now());
    }
    for (const Ptr& stream : open_) stream->Cancel();
    while (!open_.empty()) ended_.Wait(mutex_);
  }

 private:
  const size_t count_max_;
  const Clock& clock_;
  Mutex mutex_;
  CondVar ended_;
  bool ending_ GUARDED_BY(mutex_) = false;
  std::set<Ptr> open_ GUARDED_BY(mutex_);
};

}  // namespace dws
