// One lasting stream to a peer: connects, reconnects when the stream breaks, drops it when it is
// silent. LinkState decides; this class carries its decisions out with StreamCall.
#pragma once

#include <functional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/service/peers/stream_call.h"
#include "common/sync_state/link_state.h"

namespace dws {

// Lifecycle: connects with its first Tick; Stop waits for the stream's end. Threads: safe from any.
template <typename Up, typename Down>
class StreamLink {
 public:
  using Call = StreamCall<Up, Down>;
  using CallPtr = typename Call::Ptr;
  // on_message and on_done are called one at a time, and must not block.
  struct Callbacks {
    // Makes the channel ready. An error ends the attempt and goes to on_done.
    std::function<Status()> prepare;
    // The method of a stub.
    std::function<void(grpc::ClientContext*, grpc::ClientBidiReactor<Up, Down>*)> open;
    std::function<Up()> hello;  // the first message to send
    // `first`: the first message of this stream. An error ends the stream.
    std::function<Status(const CallPtr& call, const Down& message, const Peer& peer, bool first)>
        on_message;
    // `lost`: the stream had received a message, and Stop was not called.
    std::function<void(const Status& reason, bool lost)> on_done;
  };

  // `queue_max` messages may wait; `clock` outlives it.
  StreamLink(size_t queue_max, const Clock& clock, Callbacks callbacks)
      : queue_max_(queue_max),
        clock_(clock),
        callbacks_(std::move(callbacks)),
        state_(clock.Now()) {}

  // Connects or drops if it is time to; called every limits::kTick, by one thread.
  LinkState::Step Tick() {
    CallPtr call;
    LinkState::Step step;
    {
      MutexLock lock(mutex_);
      step = state_.Tick(clock_.Now());
      call = call_;
    }
    if (step == LinkState::Step::kConnect) Connect();
    if (step == LinkState::Step::kDrop && call != nullptr) {
      call->Cancel(UnavailableError("it was silent for {} s", limits::kKeepaliveTimeout.count()));
    }
    return step;
  }

  // Drops the message if there is no stream.
  void Send(Up message) {
    CallPtr call;
    {
      MutexLock lock(mutex_);
      call = call_;
    }
    if (call != nullptr) call->Send(std::move(message));
  }

  // The peer has accepted us: the next reconnect may come after the shortest delay.
  void Accepted() {
    MutexLock lock(mutex_);
    state_.OnAccepted();
  }

  // Ends the stream, if there is one, even if it is still being opened. A later Tick opens another.
  void Drop(const Status& reason) {
    CallPtr call;
    {
      MutexLock lock(mutex_);
      call = call_;
      if (connecting_) dropped_ = reason;
    }
    if (call != nullptr) call->Cancel(reason);
  }

  void Stop() {
    CallPtr call;
    {
      MutexLock lock(mutex_);
      state_.Stop();
      call = call_;
    }
    if (call != nullptr) call->Cancel(Stopping());
    call.reset();
    MutexLock lock(mutex_);
    while (!state_.idle()) changed_.Wait(mutex_);
  }

 private:
  static Status Stopping() { return CancelledError("the receiver is shutting down"); }

  void Connect() {
    {
      MutexLock lock(mutex_);
      connecting_ = true;
      dropped_ = OkStatus();
    }
    if (const Status ready = callbacks_.prepare(); !ready.ok()) {
      OnDone(ready);
      MutexLock lock(mutex_);
      state_.OnStarted();  // OnDone came first, so this ends the attempt
      connecting_ = false;
      changed_.NotifyAll();
      return;
    }
    const CallPtr call = Call::Start(
        callbacks_.open, callbacks_.hello(), queue_max_,
        {.on_message = [this](const CallPtr& on, const Down& message,
                              const Peer& peer) { return OnMessage(on, message, peer); },
         .on_done = [this](const Status& reason) { OnDone(reason); }});
    Status over;  // why the new stream ends at once; OK: it goes on
    {
      MutexLock lock(mutex_);
      if (state_.OnStarted()) call_ = call;
      connecting_ = false;
      over = state_.stopping() ? Stopping() : dropped_;
      changed_.NotifyAll();
    }
    if (!over.ok()) call->Cancel(over);
  }

  Status OnMessage(const CallPtr& call, const Down& message, const Peer& peer) {
    bool first = false;
    {
      MutexLock lock(mutex_);
      first = state_.OnHeard(clock_.Now());
    }
    return callbacks_.on_message(call, message, peer, first);
  }

  void OnDone(const Status& reason) {
    bool lost = false;
    {
      MutexLock lock(mutex_);
      lost = state_.heard() && !state_.stopping();
    }
    callbacks_.on_done(reason, lost);
    MutexLock lock(mutex_);
    call_.reset();
    state_.OnDone(clock_.Now(), absl::IsAborted(reason));
    changed_.NotifyAll();
  }

  const size_t queue_max_;
  const Clock& clock_;
  const Callbacks callbacks_;

  Mutex mutex_;
  CondVar changed_;
  LinkState state_ GUARDED_BY(mutex_);
  CallPtr call_ GUARDED_BY(mutex_);
  bool connecting_ GUARDED_BY(mutex_) = false;  // Connect has not set call_ yet
  Status dropped_ GUARDED_BY(mutex_);           // Drop's reason while connecting; OK: none
};

}  // namespace dws
