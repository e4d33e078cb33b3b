// The client's end of one bidirectional stream: passes received messages to a callback, writes
// queued ones, one write in flight. Used for the Sync streams to senders, and for the stream of a
// commit group's member to its leader.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/security/access.h"

namespace dws {

// Lifecycle: owns itself until gRPC is done with it; its starter shares ownership. Threads: safe
// from any.
template <typename Up, typename Down>
class StreamCall final : public grpc::ClientBidiReactor<Up, Down> {
 public:
  using Ptr = std::shared_ptr<StreamCall>;
  struct Callbacks {
    // On gRPC's threads, one at a time, never after on_done. Must not block. An error ends the
    // call. `peer` sent the message.
    std::function<Status(const Ptr& call, const Down& message, const Peer& peer)> on_message;
    std::function<void(const Status&)> on_done;
  };

  // `open` is the method of a stub; `first` is sent first; `queue_max` messages may wait.
  static Ptr Start(
      const std::function<void(grpc::ClientContext*, grpc::ClientBidiReactor<Up, Down>*)>& open,
      Up first, size_t queue_max, Callbacks callbacks) {
    Ptr call(new StreamCall(queue_max, std::move(callbacks)));
    call->self_ = call;
    open(&call->context_, call.get());
    call->AddHold();
    call->StartRead(&call->down_);
    call->Send(std::move(first));
    call->StartCall();
    return call;
  }

  // Queues a message. False: dropped, because the queue is full. If the call is ending, the message
  // is dropped and the result is true.
  bool Send(Up message) {
    {
      MutexLock lock(mutex_);
      if (ending_) return true;  // on_done reports the end
      if (queue_.size() >= queue_max_) return false;
      queue_.push_back(std::move(message));
    }
    Pump();
    return true;
  }

  void Cancel(const Status& reason) {
    {
      MutexLock lock(mutex_);
      if (reason_.ok()) reason_ = reason;
    }
    context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return EndWrites();
    if (!peer_.has_value()) peer_ = PeerOf(context_.auth_context().get());
    if (const Status status = callbacks_.on_message(self_, down_, *peer_); !status.ok()) {
      Cancel(status);
      return EndWrites();
    }
    this->StartRead(&down_);
  }

  void OnWriteDone(bool ok) override {
    bool ending = false;
    {
      MutexLock lock(mutex_);
      writing_ = false;
      ending = ending_;
    }
    if (ending || !ok) return EndWrites();
    Pump();
  }

  void OnDone(const grpc::Status& status) override {
    Status reason = FromGrpc(status);
    {
      MutexLock lock(mutex_);
      if (!reason_.ok()) reason = reason_;
    }
    if (reason.ok()) reason = UnavailableError("the other side ended the stream");
    callbacks_.on_done(reason);
    self_.reset();  // may delete this: no statement may follow
  }

 private:
  StreamCall(size_t queue_max, Callbacks callbacks)
      : queue_max_(queue_max), callbacks_(std::move(callbacks)) {}

  // Starts the next write if none is in flight. Called without the lock.
  void Pump() {
    {
      MutexLock lock(mutex_);
      if (writing_ || ending_ || queue_.empty()) return;
      writing_ = true;
      up_ = std::move(queue_.front());
      queue_.pop_front();
    }
    this->StartWrite(&up_);
  }

  // No write starts after this.
  void EndWrites() {
    {
      MutexLock lock(mutex_);
      ending_ = true;
      // A write in flight still gets its OnWriteDone, which calls this again.
      if (writing_ || !held_) return;
      held_ = false;
    }
    this->RemoveHold();
  }

  const size_t queue_max_;
  const Callbacks callbacks_;
  Ptr self_;
  grpc::ClientContext context_;
  std::optional<Peer> peer_;  // set by the first message; used only in reactions
  Down down_;
  Up up_;  // in flight

  Mutex mutex_;
  std::deque<Up> queue_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool ending_ GUARDED_BY(mutex_) = false;
  bool held_ GUARDED_BY(mutex_) = true;  // AddHold's, which allows writes from outside reactions
  Status reason_ GUARDED_BY(mutex_);     // why we cancelled; OK: we did not
};

}  // namespace dws
