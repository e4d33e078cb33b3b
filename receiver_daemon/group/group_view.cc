#include "receiver_daemon/group/group_view.h"

#include "common/base/status.h"

namespace dws {

std::string GroupFacts::MemberName(uint32_t index) const {
  const std::string& receiver = remotes[index].receiver_id;
  return fmt::format("member {} of group '{}'{}", index, place.group_id,
                     receiver.empty() ? "" : fmt::format(", receiver '{}',", receiver));
}

std::string GroupFacts::WaitsForMember(uint32_t index) const {
  const GroupLeaderState::Member& state = states.leader->members()[index];
  const std::string who = MemberName(index);
  if (!state.connection.has_value()) {
    return who +
           (remotes[index].receiver_id.empty() ? " has not connected yet" : " is not connected");
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
std::string GroupFacts::WaitsForWhole() const {
  const size_t own = states.leader->members()[0].share->share.held.size();
  for (uint32_t m = 1; m < remotes.size(); ++m) {
    const size_t slices = states.leader->members()[m].share->share.held.size();
    if (slices == own) continue;
    return fmt::format(
        "{} knows a trainer's layout of {} slices, the leader one of {}: --sender has to name the "
        "same trainer on all members",
        MemberName(m), slices, own);
  }
  const std::string slice =
      layouts == nullptr ? "a slice" : layouts->SliceName(*states.leader->unheld());
  return fmt::format(
      "no engine rank of group '{}' holds {}: give every host's ranks their own slices, map it on "
      "one of them, or exclude its tensor on all",
      place.group_id, slice);
}

std::string GroupFacts::WaitsFor() const {
  if (states.member.ended()) return "its commit group has ended, a member was evicted";
  if (!states.leader.has_value()) {
    if (leader_connected) return "";
    return fmt::format("the leader of group '{}' at {} is not connected: {}", place.group_id,
                       place.leader_address, last_error);
  }
  for (uint32_t m = 0; m < remotes.size(); ++m) {
    std::string waits = WaitsForMember(m);
    if (!waits.empty()) return waits;
  }
  if (states.leader->unheld().has_value()) return WaitsForWhole();
  for (uint32_t m = 0; m < remotes.size(); ++m) {
    const std::string& error = remotes[m].last_error;
    if (!error.empty()) return fmt::format("{} cannot stage: {}", MemberName(m), error);
  }
  return "";
}

GroupView GroupFacts::View() const {
  GroupView view{.phase = states.member.phase(),
                 .ended = states.member.ended(),
                 .leader_connected = leader_connected,
                 .last_error = states.leader.has_value() ? "" : last_error,
                 .round = {},
                 .decided = {},
                 .members = {},
                 .waits_for = WaitsFor()};
  if (!states.leader.has_value()) return view;
  view.round = states.leader->round();
  view.decided = states.leader->decided();
  for (uint32_t m = 0; m < remotes.size(); ++m) {
    const GroupLeaderState::Member& state = states.leader->members()[m];
    view.members.push_back({.receiver_id = remotes[m].receiver_id,
                            .connected = state.connection.has_value(),
                            .attached = state.generation.has_value(),
                            .live = state.live,
                            .staged = view.round.has_value() && state.staged,
                            .released = state.released,
                            .last_error = remotes[m].last_error});
  }
  return view;
}

}  // namespace dws
