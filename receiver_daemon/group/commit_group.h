// This receiver's place in a commit group (protocol.md §6): its GroupMemberState and, on the
// leader, the GroupLeaderState, between the network's threads and the worker's. It decides nothing:
// it passes events to the states, and their actions to connections and, as orders, to the worker.
// The leader's connection to its own member is in here too.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/sync_state/group_leader_state.h"
#include "common/sync_state/group_member_state.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/group/group_place.h"
#include "receiver_daemon/peers/change_signal.h"
#include "receiver_daemon/weights/layout_set.h"

namespace dws {

// Orders to the worker, in the order in which it carries them out. The worker answers each with the
// call that the action names.
struct StageOrder {
  uint64_t attempt = 0;  // tells it from one of another connection that has the same nonce
  StageTarget what;
};
using GroupOrder = std::variant<StageOrder, DropStaged, WriteStaged, ReleaseEngine, EndEngine,
                                RecordDecided, RecordSettled, PauseEngine>;

// A leader's connection to a member. Calls never block; they come one at a time, in order.
class MemberConnection {
 public:
  virtual ~MemberConnection() = default;
  virtual void Welcome() = 0;
  virtual void Send(const GroupDown& message) = 0;
  virtual void Keepalive() = 0;
  virtual void Close(const Status& reason) = 0;
};

// The state of the group as an operator sees it.
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

// Lifecycle: `registry`, `clock` and `changed` must outlive it; call Stop before the connections
// stop. Threads: safe from any.
class CommitGroup {
 public:
  // `decided`: what the ledger says is decided and not settled. `registry`: of the engine that ends
  // with the group, at once, whatever the worker is doing. `policy`: of a leader, for all.
  CommitGroup(GroupPlace place, std::string receiver_id, std::optional<VersionAt> decided,
              EngineRegistry& registry, const Clock& clock, ChangeSignal& changed,
              const CommitPolicy& policy = {});

  const GroupPlace& place() const { return place_; }
  bool leads() const { return place_.index == 0; }
  GroupView view() const;

  // The worker's side; see the states.
  std::vector<GroupOrder> TakeOrders();
  bool has_orders() const;
  // Returns whether the group still needs the version that is being staged for `order`.
  bool Wants(const StageOrder& order) const;
  // `layouts`: what `share` is of, for messages.
  void OnEngine(std::optional<Generation> generation, EngineShare share, LayoutSetPtr layouts);
  void OnProved(Generation generation, const VersionAt& version);
  // Its memory has changed, and the engine rank is paused.
  void OnDrift();
  // Its memory is unchanged, and has to be brought to a version again.
  void OnResync();
  // An operator had it forgotten; the engine was told of as gone before.
  void OnForget(const StreamId& stream);
  void OnStaged(const StageOrder& order, std::optional<WeightVersion> base, const Status& status);
  void OnWritten(GroupNonce round, const Status& status, bool untouched);
  void OnTarget(const std::optional<VersionAt>& target);  // a member ignores it
  void OnDecided(const RecordDecided& decision, const Status& status);
  void OnPaused(GroupNonce round, const Status& status);
  void OnBoundary();  // a member ignores it
  // An operator drains this receiver, which has something staged.
  void OnDrain();
  // The held round of a leader; kNone on the members.
  struct Hold {
    RoundHold state = RoundHold::kNone;
    std::optional<GroupNonce> round;
    uint64_t replaced = 0;
  };
  Hold hold() const;

  // Called for an operator: ends the engine for good. FAILED_PRECONDITION: this is not the leader,
  // or the engine has ended already. INVALID_ARGUMENT: there is no such member.
  Status Evict(uint32_t index, const std::string& reason);

  // The connection to the leader, as the member sees it. `send` never blocks.
  ConnectionId OnLeaderConnect(std::function<void(const GroupUp&)> send);
  void OnDown(ConnectionId connection, const GroupDown& message);
  // nullopt: it never came about.
  void OnLeaderDisconnect(std::optional<ConnectionId> connection, const Status& reason);

  // The connections to the members, as the leader sees them.
  // INVALID_ARGUMENT: there is no such member. ALREADY_EXISTS: another receiver has its place.
  // UNAVAILABLE: stopping. A connection of the same receiver is closed with ABORTED.
  Result<ConnectionId> OnMemberConnect(uint32_t index, const std::string& receiver_id,
                                       std::shared_ptr<MemberConnection> connection);
  void OnUp(uint32_t index, ConnectionId connection, const GroupUp& message);
  void OnMemberDisconnect(uint32_t index, ConnectionId connection);

  // Call it every limits::kTick: does what is due.
  void Tick();
  // Closes the connections to members, and accepts no more.
  void Stop();

 private:
  struct Remote {
    std::string receiver_id;
    std::optional<ConnectionId> id;
    std::shared_ptr<MemberConnection> connection;  // null: absent, or this receiver itself
    std::string last_error;
  };

  void Drive() REQUIRES(mutex_);  // until neither state has more to do
  void Act(const SendUp& action) REQUIRES(mutex_);
  void Act(const SendDown& action) REQUIRES(mutex_);
  void Act(const StageTarget& action) REQUIRES(mutex_);
  void Act(const DropStaged& action) REQUIRES(mutex_);
  void Act(const RetryLater& action) REQUIRES(mutex_);
  void Act(const EndEngine& action) REQUIRES(mutex_);
  template <typename Order>
  void Act(const Order& order) REQUIRES(mutex_);
  void DropReleases() REQUIRES(mutex_);
  void TellLeader(uint32_t index, ConnectionId connection, const GroupUp& message) REQUIRES(mutex_);
  // In words; empty: it waits for nothing. Only a leader uses the last two.
  std::string WaitsFor() const REQUIRES(mutex_);
  std::string WaitsForMember(uint32_t index) const REQUIRES(mutex_);
  std::string WaitsForWhole() const REQUIRES(mutex_);
  std::string MemberName(uint32_t index) const REQUIRES(mutex_);
  // Sends the pending messages, in order, and wakes the worker. Called without the lock.
  void Deliver();

  const GroupPlace place_;
  EngineRegistry& registry_;
  const Clock& clock_;
  ChangeSignal& changed_;
  mutable Mutex mutex_;
  GroupMemberState member_ GUARDED_BY(mutex_);
  std::optional<GroupLeaderState> leader_ GUARDED_BY(mutex_);
  LayoutSetPtr layouts_ GUARDED_BY(mutex_);
  std::deque<GroupOrder> orders_ GUARDED_BY(mutex_);
  std::deque<std::function<void()>> outbox_ GUARDED_BY(mutex_);
  bool delivering_ GUARDED_BY(mutex_) = false;
  bool news_ GUARDED_BY(mutex_) = false;  // for the worker
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t last_connection_ GUARDED_BY(mutex_) = 0;
  uint64_t attempt_ GUARDED_BY(mutex_) = 0;
  // To the leader.
  std::optional<ConnectionId> leader_id_ GUARDED_BY(mutex_);
  std::function<void(const GroupUp&)> send_up_ GUARDED_BY(mutex_);
  std::string last_error_ GUARDED_BY(mutex_);
  // The leader's.
  std::vector<Remote> remotes_ GUARDED_BY(mutex_);  // by index
  std::optional<TimePoint> retry_at_ GUARDED_BY(mutex_);
  Duration retry_delay_ GUARDED_BY(mutex_);
  TimePoint next_keepalive_ GUARDED_BY(mutex_);
};

}  // namespace dws
