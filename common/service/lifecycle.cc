#include "common/service/lifecycle.h"

#include <algorithm>
#include <utility>

#include "common/base/printable.h"

namespace dws {

Lifecycle::Lifecycle() : state_{.ready = false, .stopping = false, .reason = "starting"} {}

void Lifecycle::SetReady() { Change({.ready = true, .stopping = false, .reason = ""}); }

void Lifecycle::SetNotReady(std::string reason) {
  // The reason is shown by /readyz and systemd, and may quote text from any peer.
  reason = EscapeUnprintable(reason);
  Change({.ready = false, .stopping = false, .reason = std::move(reason)});
}

void Lifecycle::SetStopping() { Change({.ready = false, .stopping = true, .reason = "stopping"}); }

Lifecycle::State Lifecycle::state() const {
  MutexLock lock(mutex_);
  return state_;
}

void Lifecycle::Change(State state) {
  MutexLock lock(mutex_);
  if (state_.stopping || state_ == state) return;
  state_ = std::move(state);
  ++change_;
  Deliver();
}

// Only one thread delivers at a time, so that a listener never sees an older state after a newer
// one. If another thread changes the state meanwhile, it leaves the delivery to the delivering
// thread.
void Lifecycle::Deliver() {
  if (delivering_) return;
  delivering_ = true;
  deliverer_ = std::this_thread::get_id();
  while (true) {
    const auto behind = std::find_if(entries_.begin(), entries_.end(),
                                     [this](const Entry& e) { return e.seen < change_; });
    if (behind == entries_.end()) break;
    behind->seen = change_;
    const Listener listener = behind->listener;
    const State state = state_;
    mutex_.Unlock();
    listener(state);
    mutex_.Lock();
  }
  delivering_ = false;
  delivered_.NotifyAll();
}

Lifecycle::ListenerId Lifecycle::AddListener(Listener listener) {
  MutexLock lock(mutex_);
  const ListenerId id(++last_id_);
  entries_.push_back({.id = id, .listener = std::move(listener), .seen = 0});
  Deliver();
  while (delivering_ && deliverer_ != std::this_thread::get_id()) delivered_.Wait(mutex_);
  return id;
}

void Lifecycle::RemoveListener(ListenerId id) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [id](const Entry& entry) { return entry.id == id; });
  while (delivering_ && deliverer_ != std::this_thread::get_id()) delivered_.Wait(mutex_);
}

}  // namespace dws
