// The server's end of one bidirectional stream: hands received messages to a derived class, and
// writes what that class has to say, with one write in flight. gRPC's reactions must not block, so
// messages wait in a bounded queue.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/grpc/grpc_status.h"

namespace dws {

// Lifecycle: Run; then it owns itself until OnDone, and others may share it. Threads: safe from
// any; gRPC calls OnMessage and OnEnd one at a time.
template <typename Up, typename Down>
class ServerStream : public grpc::ServerBidiReactor<Up, Down> {
 public:
  // Queues a message. If the peer does not read, and the queue is full, the stream ends.
  void Send(Down message) {
    Update([&] {
      if (reason_.has_value()) return;
      if (queue_.size() < queue_max_) return queue_.push_back(std::move(message));
      End(ResourceExhaustedError("{} messages wait for {} to read them", queue_.size(), peer_));
    });
  }
  // Both end the stream. The first reason counts. EndNow drops what is not written yet, also after
  // EndAfterQueue.
  void EndNow(const Status& reason) {
    Update([&] { End(reason); });
  }
  void EndAfterQueue(const Status& reason) {
    Update([&] {
      if (reason_.has_value()) return;
      reason_ = reason;
      ends_after_queue_ = true;
    });
  }

  void OnReadDone(bool ok) final {
    if (!ok) return EndNow(OkStatus());  // half-closed or broken
    if (const Status status = OnMessage(up_); !status.ok()) return EndNow(status);
    this->StartRead(&up_);
  }
  void OnWriteDone(bool ok) final {
    Update([&] {
      DWS_CHECK(writing_);
      writing_ = false;
      if (!ok) End(UnavailableError("{} hung up", peer_));
    });
  }
  void OnCancel() final { EndNow(CancelledError("{} hung up", peer_)); }
  void OnDone() final {
    Status reason;
    {
      MutexLock lock(mutex_);
      finished_ = true;
      reason = reason_.value_or(OkStatus());
    }
    OnEnd(reason);
    self_.reset();  // may be the last reference: nothing after this line
  }

 protected:
  // Writes one message, which is empty before. Called without the lock.
  using Fill = std::function<void(Down&)>;

  // `peer`: the client, for messages, as in "the engine".
  ServerStream(std::string_view peer, size_t queue_max) : peer_(peer), queue_max_(queue_max) {}

  // Begins to read. The result is for gRPC.
  template <typename Stream>
  static Stream* Run(const std::shared_ptr<Stream>& stream) {
    stream->self_ = stream;
    stream->StartRead(&stream->up_);
    return stream.get();
  }

  // A message has come. An error ends the stream.
  virtual Status OnMessage(const Up& message) = 0;
  // The last call.
  virtual void OnEnd(const Status& reason) = 0;
  // The message that is to be written next; null: none.
  virtual Fill Next() REQUIRES(mutex_) {
    if (queue_.empty()) return nullptr;
    Fill fill = [message = std::move(queue_.front())](Down& down) { down = message; };
    queue_.pop_front();
    return fill;
  }

  // Calls change() under the lock, and writes what is due then.
  template <typename Change>
  void Update(Change change) {
    {
      MutexLock lock(mutex_);
      change();
    }
    Pump();
  }
  // Returns whether nothing is being written.
  bool quiet() const {
    MutexLock lock(mutex_);
    return !writing_ && queue_.empty();
  }

  mutable Mutex mutex_;  // also for the members of a derived class

 private:
  void End(const Status& reason) REQUIRES(mutex_) {
    ends_after_queue_ = false;
    if (!reason_.has_value()) reason_ = reason;
  }

  // Starts the next write, or finishes, unless one of these is under way.
  void Pump() {
    Fill fill;
    std::optional<Status> reason;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (!reason_.has_value() || ends_after_queue_) fill = Next();
      writing_ = fill != nullptr;
      if (!writing_) reason = reason_;
      finished_ = reason.has_value();
    }
    if (reason.has_value()) return this->Finish(ToGrpc(*reason));
    if (fill == nullptr) return;
    down_.Clear();
    fill(down_);
    this->StartWrite(&down_);
  }

  const std::string_view peer_;
  const size_t queue_max_;
  std::shared_ptr<ServerStream> self_;  // until OnDone
  Up up_;
  Down down_;  // in flight, while writing_

  std::deque<Down> queue_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  std::optional<Status> reason_ GUARDED_BY(mutex_);  // of the end
  bool ends_after_queue_ GUARDED_BY(mutex_) = false;
};

}  // namespace dws
