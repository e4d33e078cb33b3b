// The server's end of a streaming answer where only the latest message matters: a newer message
// replaces one that is not sent yet, so the producer never waits for a slow reader. Used by
// latest_streams.h.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/grpc/grpc_status.h"

namespace dws {

// Lifecycle: made for one call, which owns it until gRPC reports that the call is done. Others may
// keep a pointer longer; their offers are then ignored. Threads: safe from any.
template <typename Message>
class LatestStream final : public grpc::ServerWriteReactor<Message> {
 public:
  using Ptr = std::shared_ptr<LatestStream>;

  // `on_done` is called once, last, on a thread of gRPC; the caller's context is valid until it
  // returns.
  static Ptr Make(grpc::CallbackServerContext* context, const Clock& clock,
                  std::function<void(const Ptr&)> on_done) {
    Ptr stream(new LatestStream(context, clock, std::move(on_done)));
    stream->self_ = stream;
    return stream;
  }

  // Sends `message`, unless a newer one replaces it first. False: the stream has ended.
  bool Offer(Message message) {
    {
      MutexLock lock(mutex_);
      if (close_.has_value()) return false;
      unsent_ = std::move(message);
    }
    Pump();
    return true;
  }

  // Ends the call after the messages offered so far; later offers are ignored. Idempotent.
  void Close(const Status& status) { End(status, false); }
  // Ends the call and discards an unsent message.
  void Abort(const Status& status) { End(status, true); }

  // Ends the call even if the caller does not read. Only valid before the call is done
  // (LatestStreams makes sure of it).
  void Cancel() { context_->TryCancel(); }

  // How long a write or the final status has been waiting for the caller; zero when none waits.
  Duration stalled() const {
    MutexLock lock(mutex_);
    return busy_since_.has_value() ? clock_.Now() - *busy_since_ : Duration::zero();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!close_.has_value()) busy_since_.reset();
      if (!ok) gone_ = true;
    }
    Pump();
  }
  void OnCancel() override { Abort(CancelledError("the caller disconnected")); }
  void OnDone() override {
    const Ptr self = std::move(self_);
    on_done_(self);
  }

 private:
  LatestStream(grpc::CallbackServerContext* context, const Clock& clock,
               std::function<void(const Ptr&)> on_done)
      : context_(context), clock_(clock), on_done_(std::move(on_done)) {}

  void End(const Status& status, bool at_once) {
    {
      MutexLock lock(mutex_);
      if (!close_.has_value()) close_ = status;
      if (at_once) unsent_.reset();
      if (!busy_since_.has_value()) busy_since_ = clock_.Now();
    }
    Pump();
  }

  // Starts the next write, or the end of the call, if no operation is in flight. gRPC is called
  // without the lock; `writing_` and `finished_` keep other threads from calling it at the same
  // time.
  void Pump() {
    bool write = false;
    Status status;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (unsent_.has_value() && !gone_) {
        sending_ = *std::move(unsent_);
        unsent_.reset();
        writing_ = write = true;
        if (!busy_since_.has_value()) busy_since_ = clock_.Now();
      } else if (close_.has_value() || gone_) {
        finished_ = true;
        if (!close_.has_value()) close_ = CancelledError("the caller disconnected");
        status = *close_;
      } else {
        return;
      }
    }
    if (write) {
      this->StartWrite(&sending_);
    } else {
      this->Finish(ToGrpc(status));
    }
  }

  grpc::CallbackServerContext* const context_;
  const Clock& clock_;
  const std::function<void(const Ptr&)> on_done_;
  Ptr self_;  // keeps this object alive until OnDone
  mutable Mutex mutex_;
  std::optional<Message> unsent_ GUARDED_BY(mutex_);
  Message sending_;  // gRPC reads it while writing_
  bool writing_ GUARDED_BY(mutex_) = false;
  bool gone_ GUARDED_BY(mutex_) = false;  // a write failed
  bool finished_ GUARDED_BY(mutex_) = false;
  std::optional<Status> close_ GUARDED_BY(mutex_);
  std::optional<TimePoint> busy_since_ GUARDED_BY(mutex_);
};

}  // namespace dws
