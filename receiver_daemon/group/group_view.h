// The state of a commit group as an operator sees it, with what it waits for, in words.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/sync_state/group_leader_state.h"
#include "common/sync_state/group_member_state.h"
#include "receiver_daemon/group/group_place.h"
#include "receiver_daemon/weights/layout_set.h"

namespace dws {

// Copied out under a lock.
struct GroupView {
  struct Member {
    std::string receiver_id;  // empty: never connected
    bool connected = false;
    bool attached = false;
    std::optional<VersionAt> live;
    bool staged = false;
    bool released = false;
    std::string last_error;
  };
  GroupMemberState::Phase phase = GroupMemberState::Phase::kIdle;
  bool ended = false;
  bool leader_connected = false;
  std::string last_error;  // of the connection to the leader
  // The leader's; empty on the others.
  std::optional<GroupLeaderState::Round> round;
  std::optional<VersionAt> decided;
  std::vector<Member> members;
  // What the engine is waiting for, in words; empty: nothing that is known here.
  std::string waits_for;
};

// What decides; CommitGroup guards it.
struct GroupStates {
  GroupMemberState member;
  std::optional<GroupLeaderState> leader;  // of the leader
};

class MemberConnection;
// What a leader knows of a member's connection.
struct GroupRemote {
  std::string receiver_id;
  std::optional<ConnectionId> id;
  std::shared_ptr<MemberConnection> connection;  // null: absent, or this receiver itself
  std::string last_error;
};

// What a view is made from. Lifecycle: valid while what it refers to is unchanged.
struct GroupFacts {
  const GroupPlace& place;
  const GroupStates& states;
  const LayoutSetPtr& layouts;  // null: unknown
  bool leader_connected;
  const std::string& last_error;            // of the connection to the leader
  const std::vector<GroupRemote>& remotes;  // by index; empty on members

  GroupView View() const;

 private:
  std::string MemberName(uint32_t index) const;
  std::string WaitsFor() const;
  // These two are for a leader.
  std::string WaitsForMember(uint32_t index) const;
  std::string WaitsForWhole() const;
};

}  // namespace dws
