// A leader of a commit group of two, and short calls for the actions of its members.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/sync_state/group_leader_state.h"

namespace dws {

inline constexpr StreamId kOld{.incarnation = 1, .id_hi = 0, .id_lo = 11};
inline constexpr StreamId kStream{.incarnation = 2, .id_hi = 0, .id_lo = 22};
inline constexpr StreamId kNew{.incarnation = 3, .id_hi = 0, .id_lo = 33};
inline constexpr Generation kGeneration(7);
inline constexpr uint32_t kMembers = 2;

inline VersionAt At(uint64_t version, const StreamId& stream = kStream) {
  return {.stream = stream, .version = WeightVersion(version)};
}

// A leader with two members, and short calls for their actions.
struct Group {
  explicit Group(std::optional<VersionAt> decided = std::nullopt, const CommitPolicy& policy = {})
      : leader(kMembers, decided, policy) {}

  void Connect(uint32_t member) {
    connections[member] = ConnectionId(connections[member].value() + 10 + member);
    leader.OnConnect(MemberIndex(member), connections[member]);
    Take();
  }
  // Connects the member with its engine attached and memory at `live`.
  void Join(uint32_t member, std::optional<VersionAt> live) {
    Connect(member);
    Up(member, GroupReport{.generation = kGeneration, .live = live});
  }
  // Like a member, sends an engine rank's share before its first report.
  void Up(uint32_t member, const GroupUp& message) {
    const auto* report = std::get_if<GroupReport>(&message);
    if (report != nullptr && report->generation.has_value()) {
      const auto said = std::pair(connections[member], *report->generation);
      if (std::exchange(shares_said[member], said) != said) {
        leader.OnUp(MemberIndex(member), connections[member],
                    GroupShare{.generation = said.second, .share = shares[member]});
      }
    }
    leader.OnUp(MemberIndex(member), connections[member], message);
    Take();
  }
  GroupStaged Staged(uint64_t version) const {
    return {.round = round, .target = At(version), .base = {}, .generation = kGeneration};
  }
  GroupCommitted Committed(uint64_t version) const {
    return {.round = round, .version = At(version), .generation = kGeneration};
  }
  void Decide(const Status& status = OkStatus()) {
    leader.OnDecided({.round = round, .version = At(5)}, status);
    Take();
  }
  void Pause(const Status& status = OkStatus()) {
    leader.OnPaused(round, status);
    Take();
  }
  void Target(std::optional<VersionAt> target) {
    leader.OnTarget(target);
    Take();
  }
  // Collects the leader's actions, one letter for each: Prepare, Commit, Abort, Resume, End,
  // and d(ecide), s(ettled), p(ause), r(etry later).
  void Take() {
    for (const LeaderAction& action : leader.TakeActions()) {
      if (const auto* down = std::get_if<SendDown>(&action)) {
        CHECK(down->message.nonce > GroupNonce(0));
        last_nonce = down->message.nonce;
        did += "PCARE"[down->message.body.index()];
        CHECK(down->connection == connections[down->member.value()]);
        if (down->message.body.index() == 0) round = down->message.nonce;
      } else {
        did += " dspr"[action.index()];
      }
    }
  }
  std::string Did() { return std::exchange(did, ""); }
  // '-' without a round, then S, D, P, C, and H for held.
  char Phase() const {
    return leader.round().has_value() ? "SDPCH"[static_cast<size_t>(leader.round()->phase)] : '-';
  }

  GroupLeaderState leader;
  std::map<uint32_t, ConnectionId> connections;
  std::map<uint32_t, EngineShare> shares;
  std::map<uint32_t, std::pair<ConnectionId, Generation>> shares_said;
  GroupNonce round;
  GroupNonce last_nonce;
  std::string did;
};

// Both run with version 4, then reach `phase`: '-', S (member 0 has staged), D, P, C,
// c (member 0 has committed).
inline Group InPhase(char phase) {
  Group group;
  group.Join(0, At(4));
  group.Join(1, At(4));
  if (phase == '-') return group;
  group.Target(At(5));
  group.Up(0, group.Staged(5));
  if (phase == 'S') return group;
  group.Up(1, group.Staged(5));
  if (phase == 'D') return group;
  group.Decide();
  if (phase == 'P') return group;
  group.Pause();
  if (phase == 'C') return group;
  group.Up(0, group.Committed(5));
  return group;
}

}  // namespace dws
