// The leader's side of a commit group as a pure class: one pause for the engine, all of its members
// at the new version or none. No I/O, no clock, no threads: CommitGroup feeds it and carries out
// its actions.
//
// Rules (protocol.md, Commit groups):
//  1. Members hold the round's target, and nothing newer, until COMMIT or ABORT.
//  2. When all have staged: DECIDED(target) is made durable; then the engine is paused once; then
//     COMMIT goes to all; when all have committed, all are released.
//  3. ABORT is sent only as long as no COMMIT of the round was sent.
//  4. After COMMIT a member's memory is unknown until the member reports: in its answer, or on a
//     new connection. An older report proves nothing.
//  5. The engine is released when all members are connected and known to hold the same version.
//  6. If they differ, the engine stays paused, and a new round brings all to a version that is not
//     below what was decided or what any of them holds. Members at that version stage nothing.
//  7. Nothing is staged or released unless the members together hold every slice of every tensor,
//     except tensors that all of them exclude.
//  8. Evicting a member ends the engine: nothing is released or committed after that, and members
//     that connect later are informed.
//  9. While the commit policy holds a staged round back, all run with their old version, until a
//     boundary or until the policy lets the round go on. A newer target replaces the round, and a
//     member that can no longer commit it ends it.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/sync_state/group_messages.h"
#include "common/sync_state/receiver_plan.h"

namespace dws {

// Actions for the leader's shell.
struct SendDown {
  MemberIndex member;
  ConnectionId connection;
  GroupDown message;
};
struct RecordDecided {  // durably, then OnDecided
  GroupNonce round;
  VersionAt version;
};
struct RecordSettled {  // may be done later; nothing waits for it
  VersionAt version;
};
struct PauseEngine {  // of the leader's own engine rank, on which all others depend; then OnPaused
  GroupNonce round;
};
struct RetryLater {};  // call OnRetry in a while
using LeaderAction = std::variant<SendDown, RecordDecided, RecordSettled, PauseEngine, RetryLater>;

// What the commit policy does to the round.
enum class RoundHold : uint8_t {
  kNone,      // no round is held
  kHeld,      // staged by all, and held back
  kUnderWay,  // it was held, or took the place of one that was, and is staged or committed now
};

// Lifecycle: lives as long as the leader's process. Threads: one at a time.
class GroupLeaderState {
 public:
  enum class Phase : uint8_t { kStaging, kDeciding, kPausing, kCommitting, kHeld };
  struct Member {
    std::optional<ConnectionId> connection;
    bool reported = false;                 // on this connection
    std::optional<Generation> generation;  // of its engine rank
    std::optional<GroupShare> share;       // of an engine rank, perhaps another
    std::optional<VersionAt> live;         // known now
    bool staged = false;                   // in the round
    bool drains = false;                   // it has staged the round, but an operator drains it
    bool released = false;
    // The last COMMIT on this connection, and the round it was for.
    struct Told {
      GroupNonce nonce;
      GroupNonce round;
      VersionAt version;
    };
    std::optional<Told> told;
  };
  struct Round {
    GroupNonce nonce;
    VersionAt target;
    Phase phase = Phase::kStaging;
    bool was_held = false;  // it, or one that it replaced
  };

  // `decided`: decided and not settled, by the ledger.
  GroupLeaderState(size_t member_count, std::optional<VersionAt> decided,
                   const CommitPolicy& policy = {});

  // TakeActions must follow each call. Calls for connections other than the member's last one are
  // ignored.
  void OnConnect(MemberIndex member, ConnectionId connection);
  void OnDisconnect(MemberIndex member, ConnectionId connection);
  void OnUp(MemberIndex member, ConnectionId connection, const GroupUp& message);
  // The newest version that all ranks offer, when that changes.
  void OnTarget(const std::optional<VersionAt>& target);
  // The engine is at a boundary, and stays there until hold() is kNone: a held round is committed.
  void OnBoundary();
  void OnDecided(const RecordDecided& decision, const Status& status);
  void OnPaused(GroupNonce round, const Status& status);
  void OnRetry();
  // The leader's own receiver has forgotten the stream: a decision for this stream no longer binds
  // anybody.
  void OnForget(const StreamId& stream);
  void Evict(MemberIndex member, const std::string& reason);

  std::vector<LeaderAction> TakeActions();

  const std::vector<Member>& members() const { return members_; }
  const std::optional<Round>& round() const { return round_; }
  const std::optional<VersionAt>& decided() const { return decided_; }
  RoundHold hold() const;
  uint64_t replaced() const { return replaced_; }  // held rounds, by newer ones
  bool ended() const { return ended_.has_value(); }
  // A slice that no member holds (see FirstUnheld), once all have reported what they hold.
  const std::optional<size_t>& unheld() const { return unheld_; }

 private:
  void Hear(Member& member, const GroupReport& report);
  void Hear(Member& member, const GroupShare& share);
  void Hear(Member& member, const GroupStaged& staged);
  void Hear(Member& member, const GroupUnable& unable);
  void Hear(Member& member, const GroupCommitted& committed);
  void Lose();  // a member no longer holds the round
  void Abort();
  void SendCommits();
  bool Holds() const;  // the round, which all have staged
  void Decide();
  void Settle(const VersionAt& version);
  void Advance();
  void LookForUnheld();
  bool AllReported() const;
  std::optional<VersionAt> Common() const;  // what all are known to hold
  bool Reachable(const VersionAt& target) const;
  void StartRound(const VersionAt& target);
  void ReplaceHeld();
  GroupNonce NextNonce();
  void Send(uint32_t member, GroupNonce nonce, decltype(GroupDown::body) body);
  void SendAll(GroupNonce nonce, const decltype(GroupDown::body)& body);

  std::vector<Member> members_;
  CommitPolicy policy_;
  std::optional<VersionAt> decided_;
  std::optional<VersionAt> target_;
  std::optional<Round> round_;
  std::optional<size_t> unheld_;
  GroupNonce last_nonce_;
  bool waits_ = false;  // for OnRetry
  uint64_t replaced_ = 0;
  std::optional<GroupEnd> ended_;
  std::vector<LeaderAction> actions_;
};

}  // namespace dws
