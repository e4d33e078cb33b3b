// The state of a CommitGroup as an operator sees it, with what it waits for, in words.
#include "receiver_daemon/group/commit_group.h"

namespace dws {

std::string CommitGroup::MemberName(uint32_t index) const {
  const std::string& receiver = remotes_[index].receiver_id;
  return fmt::format("member {} of group '{}'{}", index, place_.group_id,
                     receiver.empty() ? "" : fmt::format(", receiver '{}',", receiver));
}

std::string CommitGroup::WaitsForMember(uint32_t index) const {
  const GroupLeaderState::Member& state = leader_->members()[index];
  const std::string who = MemberName(index);
  if (!state.connection.has_value()) {
    return who +
           (remotes_[index].receiver_id.empty() ? " has not connected yet" : " is not connected");
  }
  if (!state.reported) {
    return who + " has not reported what it holds: if its group had ended before, restart it";
  }
  if (!state.generation.has_value()) return who + " has no engine";
  if (!state.share.has_value() || state.share->generation != state.generation) {
    return who + " has not reported which slices its engine holds";
  }
  return "";
}

// The members together do not hold every slice.
std::string CommitGroup::WaitsForWhole() const {
  const size_t own = leader_->members()[0].share->share.held.size();
  for (uint32_t m = 1; m < remotes_.size(); ++m) {
    const size_t slices = leader_->members()[m].share->share.held.size();
    if (slices == own) continue;
    return fmt::format(
        "{} knows a trainer's layout of {} slices, the leader one of {}: --sender has to name the "
        "same trainer on all members",
        MemberName(m), slices, own);
  }
  const std::string slice =
      layouts_ == nullptr ? "a slice" : layouts_->SliceName(*leader_->unheld());
  return fmt::format(
      "no engine rank of group '{}' holds {}: give every host's ranks their own slices, map it on "
      "one of them, or exclude its tensor on all",
      place_.group_id, slice);
}

std::string CommitGroup::WaitsFor() const {
  if (member_.ended()) return "its commit group has ended, a member was evicted";
  if (!leads()) {
    if (leader_id_.has_value()) return "";
    return fmt::format("the leader of group '{}' at {} is not connected: {}", place_.group_id,
                       place_.leader_address, last_error_);
  }
  for (uint32_t m = 0; m < remotes_.size(); ++m) {
    std::string waits = WaitsForMember(m);
    if (!waits.empty()) return waits;
  }
  if (leader_->unheld().has_value()) return WaitsForWhole();
  for (uint32_t m = 0; m < remotes_.size(); ++m) {
    const std::string& error = remotes_[m].last_error;
    if (!error.empty()) return fmt::format("{} cannot stage: {}", MemberName(m), error);
  }
  return "";
}

GroupView CommitGroup::view() const {
  MutexLock lock(mutex_);
  GroupView view{.phase = member_.phase(),
                 .ended = member_.ended(),
                 .leader_connected = leader_id_.has_value(),
                 .last_error = leads() ? "" : last_error_,
                 .round = {},
                 .decided = {},
                 .members = {},
                 .waits_for = WaitsFor()};
  if (!leader_.has_value()) return view;
  view.round = leader_->round();
  view.decided = leader_->decided();
  for (uint32_t m = 0; m < remotes_.size(); ++m) {
    const GroupLeaderState::Member& state = leader_->members()[m];
    view.members.push_back({.receiver_id = remotes_[m].receiver_id,
                            .connected = state.connection.has_value(),
                            .attached = state.generation.has_value(),
                            .live = state.live,
                            .staged = view.round.has_value() && state.staged,
                            .released = state.released,
                            .last_error = remotes_[m].last_error});
  }
  return view;
}

}  // namespace dws
