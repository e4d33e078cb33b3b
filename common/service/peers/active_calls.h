// The running blocking calls to one sender, so that they can be cancelled.
#pragma once

#include <grpcpp/client_context.h>

#include <chrono>
#include <set>

#include "common/base/clock.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Threads: safe from any. Outlives its calls.
class ActiveCalls {
 public:
  // One call's context, registered while it exists.
  class Call {
   public:
    Call(ActiveCalls& calls, Duration timeout) : calls_(calls) {
      context_.set_deadline(
          std::chrono::system_clock::now() +
          std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
      calls_.Add(&context_);
    }
    ~Call() { calls_.Remove(&context_); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    grpc::ClientContext* context() { return &context_; }

   private:
    ActiveCalls& calls_;
    grpc::ClientContext context_;
  };

  // Cancels the running calls; later ones are not affected.
  void CancelPresent() {
    MutexLock lock(mutex_);
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }
  // Cancels the running calls and all later ones.
  void CancelForGood() {
    ended_.Cancel();
    CancelPresent();
  }
  // Waits between attempts; false when cancelled for good.
  bool Wait(Duration time) { return ended_.Sleep(time); }

 private:
  void Add(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    contexts_.insert(context);
    if (ended_.cancelled()) context->TryCancel();
  }
  void Remove(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    contexts_.erase(context);
  }

  Cancellation ended_;
  Mutex mutex_;
  std::set<grpc::ClientContext*> contexts_ GUARDED_BY(mutex_);
};

}  // namespace dws
