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
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/peers/change_signal.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/group/group_orders.h"
#include "receiver_daemon/group/group_place.h"
#include "receiver_daemon/group/group_view.h"
#include "receiver_daemon/weights/layout_set.h"

namespace dws {

// A leader's connection to a member. Calls never block; they come one at a time, in order.
class MemberConnection {
 public:
  virtual ~MemberConnection() = default;
  virtual void Welcome() = 0;
  virtual void Send(const GroupDown& message) = 0;
  virtual void Keepalive() = 0;
  virtual void Close(const Status& reason) = 0;
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
  GroupView view() const;

  // The worker's side.
  //
  // Tells the states what happened: calls fn(GroupStates&), and sends what they then want sent. fn
  // must not block.
  template <typename Fn>
  void Apply(Fn fn) {
    {
      MutexLock lock(mutex_);
      fn(states_);
      Drive();
    }
    Deliver();
  }
  GroupOrders& orders() { return orders_; }
  // `layouts`: what the engine's share is of, for
  // messages.
  void OnEngine(std::optional<Generation> generation, EngineShare share, LayoutSetPtr layouts);
  void OnStaged(const StageOrder& order, std::optional<WeightVersion> base, const Status& status);
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
  void Drive() REQUIRES(mutex_);  // until neither state has more to do
  void Act(const SendUp& action) REQUIRES(mutex_);
  void Act(const SendDown& action) REQUIRES(mutex_);
  void Act(const RetryLater& action) REQUIRES(mutex_);
  template <typename Order>
  void Act(const Order& order) REQUIRES(mutex_);
  void TellLeader(uint32_t index, ConnectionId connection, const GroupUp& message) REQUIRES(mutex_);
  void ForEachConnection(void (*call)(MemberConnection&)) REQUIRES(mutex_);
  // Sends the pending messages, in order, and wakes the worker. Called without the lock.
  void Deliver();

  const GroupPlace place_;
  EngineRegistry& registry_;
  const Clock& clock_;
  ChangeSignal& changed_;
  mutable Mutex mutex_;
  GroupStates states_ GUARDED_BY(mutex_);
  LayoutSetPtr layouts_ GUARDED_BY(mutex_);
  GroupOrders orders_;
  std::deque<std::function<void()>> outbox_ GUARDED_BY(mutex_);
  bool delivering_ GUARDED_BY(mutex_) = false;
  bool news_ GUARDED_BY(mutex_) = false;  // for the worker
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t last_connection_ GUARDED_BY(mutex_) = 0;
  // To the leader.
  std::optional<ConnectionId> leader_id_ GUARDED_BY(mutex_);
  std::function<void(const GroupUp&)> send_up_ GUARDED_BY(mutex_);
  std::string last_error_ GUARDED_BY(mutex_);
  // The leader's.
  std::vector<GroupRemote> remotes_ GUARDED_BY(mutex_);  // by index
  std::optional<TimePoint> retry_at_ GUARDED_BY(mutex_);
  Duration retry_delay_ GUARDED_BY(mutex_);
  TimePoint next_keepalive_ GUARDED_BY(mutex_);
};

}  // namespace dws
