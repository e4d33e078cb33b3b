// The running blocking calls to one sender, so that they can be cancelled.
#pragma once

#include <grpcpp/client_context.h>

#include <chrono>
#include <set>

#include "common/base/clock.h"
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
    MutexLock lock(mutex_);
    ended_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
    ended_changed_.NotifyAll();
  }
  // Waits between attempts; false when cancelled for good.
  bool Wait(Duration time) {
    MutexLock lock(mutex_);
    if (!ended_) ended_changed_.WaitFor(mutex_, time);
    return !ended_;
  }

 private:
  void Add(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    contexts_.insert(context);
    if (ended_) context->TryCancel();
  }
  void Remove(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    contexts_.erase(context);
  }

  Mutex mutex_;
  CondVar ended_changed_;
  bool ended_ GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> contexts_ GUARDED_BY(mutex_);
};

}  // namespace dws
