// The hub's known receivers: those of the process before this one are awaited for a while, since a
// trainer that waits for all of them would else go on without one that did not come back.
#include <utility>

#include "common/base/log.h"
#include "common/model/limits.h"
#include "common/sync_state/presence_limits.h"
#include "sender_daemon/receiver_hub.h"

namespace dws {
namespace {
constexpr std::chrono::minutes kLookInterval{1};  // for receivers that are to be forgotten
}  // namespace

Status ReceiverHub::Forget(const std::string& receiver_id) {
  {
    MutexLock lock(mutex_);
    DWS_RETURN_IF_ERROR(state_.Forget(receiver_id));
    known_changed_ = true;
  }
  FinishWaits();
  return OkStatus();
}

void ReceiverHub::Recall() {
  const TimePoint now = clock_.Now();
  await_until_ = now + limits::kReceiverReturnWait;
  look_at_ = now + kLookInterval;
  if (memory_ == nullptr) return;
  std::vector<KnownReceiver> known = memory_->Load();
  MutexLock lock(mutex_);
  for (const KnownReceiver& receiver : known) {
    state_.Remember(receiver.id, receiver.present);
    if (receiver.present) LogInfo("receiver_awaited", {{"id", receiver.id}});
  }
}

void ReceiverHub::KeepKnown(TimePoint now) {
  std::vector<std::string> given_up;
  std::map<std::string, AnnouncerState::Receiver> receivers;
  bool look = false;
  {
    MutexLock lock(mutex_);
    if (now >= await_until_) given_up = state_.StopAwaiting();
    look = memory_ != nullptr && (known_changed_ || now >= look_at_ || !given_up.empty());
    if (look) receivers = state_.receivers();
    if (look) known_changed_ = false;
  }
  for (const std::string& id : given_up) {
    LogWarning("receiver_not_returned", {{"id", id},
                                         {"seconds", limits::kReceiverReturnWait.count()},
                                         {"effect", "nobody waits for it any more"}});
  }
  if (memory_ == nullptr) return;
  if (look) {
    look_at_ = now + kLookInterval;
    for (const std::string& id : memory_->Look(receivers, now)) {
      LogInfo("receiver_forgotten", {{"id", id}});
      MutexLock lock(mutex_);
      known_changed_ = state_.Forget(id).ok() || known_changed_;  // it may be back by now
    }
  }
  memory_->Save(now);
}

}  // namespace dws
