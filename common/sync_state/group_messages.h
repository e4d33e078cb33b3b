// The messages between the receivers of one commit group, as values. A group serves one engine
// whose ranks run on several hosts; its leader is the receiver of engine rank 0 (configured, never
// elected). group_leader_state.h and group_member_state.h say what the messages mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "common/base/strong_type.h"
#include "common/model/weight_version.h"
#include "common/sync_state/announcer_state.h"
#include "common/sync_state/engine_share.h"
#include "common/sync_state/live_state.h"

namespace dws {

// Numbers the members of a group; 0 is the leader's own.
using MemberIndex = StrongType<struct MemberIndexTag, uint32_t>;
// Grows with each message of a leader; the nonce of a Prepare names its round.
using GroupNonce = StrongType<struct GroupNonceTag, uint64_t>;

// Leader to member.
struct GroupPrepare {
  VersionAt target;
};
struct GroupCommit {
  GroupNonce round;
};
struct GroupAbort {
  GroupNonce round;
};
struct GroupResume {
  VersionAt version;
  // The generation of the engine rank that the message is about: another one may hold something
  // else.
  Generation generation;
};
// The engine is ended for good: a member was evicted.
struct GroupEnd {
  std::string reason;
};
struct GroupDown {
  GroupNonce nonce;
  std::variant<GroupPrepare, GroupCommit, GroupAbort, GroupResume, GroupEnd> body;
};

// Member to leader.
//
// The state of its memory, sent on each new connection and whenever it changes other than by
// COMMITTED.
struct GroupReport {
  GroupNonce seen;                 // of this connection; an older COMMIT will not be carried out
  std::optional<GroupNonce> held;  // the round it stages, has staged, or writes
  std::optional<Generation> generation;  // none: no engine rank is attached
  std::optional<VersionAt> live;         // none: unknown, or a mixture
  bool released = false;                 // its engine rank may run
};
// A member has staged the round's target.
struct GroupStaged {
  GroupNonce round;
  VersionAt target;
  std::optional<WeightVersion> base;
  Generation generation;
};
// The slices that its engine rank holds; sent before the first report about it on each connection.
struct GroupShare {
  Generation generation;
  EngineShare share;
};
// The target cannot be staged; memory is unchanged.
struct GroupUnable {
  GroupNonce round;
  std::string reason;
};
// A member has written and proved the version.
struct GroupCommitted {
  GroupNonce round;
  VersionAt version;
  Generation generation;
};
using GroupUp = std::variant<GroupReport, GroupStaged, GroupUnable, GroupCommitted, GroupShare>;

}  // namespace dws
