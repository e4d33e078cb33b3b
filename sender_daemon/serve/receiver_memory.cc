#include "sender_daemon/serve/receiver_memory.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/sync_state/presence_limits.h"

namespace dws {

ReceiverMemory::ReceiverMemory(FileSystem& files, std::string state_folder,
                               std::function<uint64_t()> unix_seconds)
    : files_(files),
      state_folder_(std::move(state_folder)),
      unix_seconds_(std::move(unix_seconds)) {}

std::vector<KnownReceiver> ReceiverMemory::Load() {
  auto loaded = LoadKnownReceivers(files_, state_folder_);
  if (!loaded.ok()) {
    LogWarning("known_receivers_lost",
               {{"reason", Message(loaded.status())},
                {"effect", "a receiver that does not come back will not be reported"}});
    return {};
  }
  for (const KnownReceiver& receiver : *loaded) known_[receiver.id] = receiver;
  return *std::move(loaded);
}

std::vector<std::string> ReceiverMemory::Look(
    const std::map<std::string, AnnouncerState::Receiver>& receivers, TimePoint now) {
  std::vector<std::string> forgotten;
  changed_ |= std::erase_if(
                  known_, [&](const auto& entry) { return !receivers.contains(entry.first); }) > 0;
  std::erase_if(absent_since_, [&](const auto& entry) { return !receivers.contains(entry.first); });
  for (const auto& [id, receiver] : receivers) {
    const bool here = receiver.connection.has_value();
    if (here) {
      absent_since_.erase(id);
    } else if (now - absent_since_.try_emplace(id, now).first->second >=
               limits::kReceiverForgottenAfter) {
      forgotten.push_back(id);
    }
    // An awaited receiver still counts as present: the next restart awaits it too.
    const bool present = here || receiver.awaited;
    const auto [found, first] = known_.try_emplace(id, KnownReceiver{.id = id});
    if (!first && found->second.present == present) continue;
    found->second.present = present;
    found->second.last_seen_unix_seconds = unix_seconds_();
    changed_ = true;
  }
  DWS_CHECK(known_.size() == receivers.size());
  DWS_CHECK(forgotten.size() <= absent_since_.size());
  return forgotten;
}

std::vector<KnownReceiver> ReceiverMemory::Known() const {
  std::vector<KnownReceiver> receivers;
  for (const auto& [id, receiver] : known_) receivers.push_back(receiver);
  return receivers;
}

void ReceiverMemory::Save(TimePoint now) {
  if (writing_.load()) return;
  changed_ |= failed_.exchange(false);
  const bool early =
      saved_at_.has_value() && now - *saved_at_ < limits::kKnownReceiversSaveInterval;
  if (!changed_ || early) return;
  saved_at_ = now;
  writing_.store(true);
  const bool posted = writer_.Post([this, receivers = Known()] {
    Write(receivers);
    writing_.store(false);
  });
  changed_ = !posted;
  if (!posted) writing_.store(false);
}

void ReceiverMemory::SaveLast() {
  writer_.Stop();
  // The stopped writer drops a write that had not started, so it is made here.
  if (changed_ || failed_.load() || writing_.load()) Write(Known());
}

void ReceiverMemory::Write(const std::vector<KnownReceiver>& receivers) {
  const Status status = SaveKnownReceivers(files_, state_folder_, receivers);
  failed_.store(!status.ok());
  const std::string trouble(Message(status));
  if (!status.ok() && trouble != trouble_) {
    LogWarning("known_receivers_not_saved", {{"reason", trouble}});
  }
  trouble_ = trouble;
}

}  // namespace dws
