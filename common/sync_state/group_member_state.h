// A member's side of a commit group as a pure class (group_leader_state.h has the rules): it stages
// what its leader asks for, holds exactly that, and writes at COMMIT only. The leader's own
// receiver is a member too. No I/O, no clock, no threads.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/sync_state/group_messages.h"

namespace dws {

// Actions for a member's shell.
struct SendUp {
  ConnectionId connection;
  GroupUp message;
};
struct StageTarget {  // fetch, verify, stage; then OnStaged
  GroupNonce round;
  VersionAt target;
};
struct DropStaged {};  // also gives up staging in progress
struct WriteStaged {   // intent, pause, write, record (commit_state.h), no release; then OnWritten
  GroupNonce round;
};
struct ReleaseEngine {
  VersionAt version;
};
struct EndEngine {
  std::string reason;
};
using MemberAction =
    std::variant<SendUp, StageTarget, DropStaged, WriteStaged, ReleaseEngine, EndEngine>;

// Lifecycle: lives as long as the receiver's process. Threads: one at a time.
class GroupMemberState {
 public:
  enum class Phase : uint8_t { kIdle, kStaging, kStaged, kWriting };

  // Each is followed by TakeActions.
  //
  // A new connection to the leader: what an older one asked for is dropped, except a write that has
  // begun.
  void OnConnect(ConnectionId connection);
  void OnDisconnect(ConnectionId connection);
  void OnDown(ConnectionId connection, const GroupDown& message);
  // An engine rank was attached, paused and with unknown content, or has gone. Values staged for
  // another generation are dropped. `share`: the slices that it holds.
  void OnEngine(std::optional<Generation> generation, EngineShare share = {});
  // Its memory was compared, and is exactly this version.
  void OnProved(Generation generation, const VersionAt& version);
  // Its memory is no longer known (drift); neither is the state before a write in progress.
  void OnUnproved();
  // The leader's own engine rank was paused for a round.
  void OnPaused() { released_ = false; }
  // An operator drains this receiver: its leader gives up the staged round, unless that is decided.
  void OnDrain();
  void OnStaged(GroupNonce round, std::optional<WeightVersion> base, const Status& status);
  // An error: memory may be a mixture, unless `untouched`.
  void OnWritten(GroupNonce round, const Status& status, bool untouched);

  std::vector<MemberAction> TakeActions();

  Phase phase() const { return phase_; }
  const std::optional<VersionAt>& live() const { return live_; }
  bool released() const { return released_; }
  bool ended() const { return ended_; }

 private:
  struct Write {
    ConnectionId connection;  // of its COMMIT
    Generation generation;
    std::optional<VersionAt> before;
  };
  void Obey(GroupNonce nonce, const GroupPrepare& prepare);
  void Obey(GroupNonce nonce, const GroupCommit& commit);
  void Obey(GroupNonce nonce, const GroupAbort& abort);
  void Obey(GroupNonce nonce, const GroupResume& resume);
  void Obey(GroupNonce nonce, const GroupEnd& end);
  void BeginPending();
  void Drop();
  void SendShare();
  void Report();
  void Send(GroupUp message);

  std::optional<ConnectionId> connection_;
  GroupNonce seen_;  // on this connection
  std::optional<Generation> generation_;
  EngineShare share_;
  std::optional<VersionAt> live_;
  bool released_ = false;
  bool ended_ = false;

  Phase phase_ = Phase::kIdle;
  GroupNonce round_;  // unless idle
  VersionAt target_;
  Write write_;                         // while writing
  std::optional<StageTarget> pending_;  // arrived while an earlier round was written
  std::vector<MemberAction> actions_;
};

}  // namespace dws
