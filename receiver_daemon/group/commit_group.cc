#include "receiver_daemon/group/commit_group.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"

namespace dws {

CommitGroup::CommitGroup(GroupPlace place, std::string receiver_id,
                         std::optional<VersionAt> decided, EngineRegistry& registry,
                         const Clock& clock, ChangeSignal& changed, const CommitPolicy& policy)
    : place_(std::move(place)),
      registry_(registry),
      clock_(clock),
      changed_(changed),
      last_error_("not connected yet"),
      retry_delay_(limits::kReconnectDelayMin),
      next_keepalive_(clock.Now()) {
  DWS_CHECK(place_.index < place_.member_count);
  if (!place_.leads()) return;
  states_.leader.emplace(place_.member_count, decided, policy);
  remotes_.resize(place_.member_count);
  leader_id_ = ConnectionId(++last_connection_);
  remotes_[0] = {.receiver_id = std::move(receiver_id),
                 .id = leader_id_,
                 .connection = nullptr,
                 .last_error = ""};
  MutexLock lock(mutex_);
  states_.leader->OnConnect(MemberIndex(0), *leader_id_);
  states_.member.OnConnect(*leader_id_);
  Drive();
}

void CommitGroup::OnEngine(std::optional<Generation> generation, EngineShare share,
                           LayoutSetPtr layouts) {
  Apply([&](GroupStates& states) {
    layouts_ = std::move(layouts);
    orders_.DropReleases();
    states.member.OnEngine(generation, std::move(share));
  });
}

void CommitGroup::OnStaged(const StageOrder& order, std::optional<WeightVersion> base,
                           const Status& status) {
  Apply([&](GroupStates& states) {
    if (!orders_.Wants(order)) return;  // dropped meanwhile
    states.member.OnStaged(order.what.round, base, status);
  });
}

GroupView CommitGroup::view() const {
  MutexLock lock(mutex_);
  return GroupFacts{.place = place_,
                    .states = states_,
                    .layouts = layouts_,
                    .leader_connected = leader_id_.has_value(),
                    .last_error = last_error_,
                    .remotes = remotes_}
      .View();
}

CommitGroup::Hold CommitGroup::hold() const {
  MutexLock lock(mutex_);
  if (!states_.leader.has_value()) return {};
  Hold hold{.state = states_.leader->hold(),
            .round = std::nullopt,
            .replaced = states_.leader->replaced()};
  if (states_.leader->round().has_value()) hold.round = states_.leader->round()->nonce;
  return hold;
}

ConnectionId CommitGroup::OnLeaderConnect(std::function<void(const GroupUp&)> send) {
  ConnectionId id;
  Apply([&](GroupStates& states) {
    id = ConnectionId(++last_connection_);
    leader_id_ = id;
    send_up_ = std::move(send);
    last_error_.clear();
    states.member.OnConnect(id);
    news_ = true;
  });
  return id;
}

void CommitGroup::OnDown(ConnectionId connection, const GroupDown& message) {
  Apply([&](GroupStates& states) {
    states.member.OnDown(connection, message);
    news_ = true;
  });
}

void CommitGroup::OnLeaderDisconnect(std::optional<ConnectionId> connection, const Status& reason) {
  Apply([&](GroupStates& states) {
    last_error_ = std::string(Message(reason));
    news_ = true;
    if (!connection.has_value() || leader_id_ != connection) return;
    leader_id_.reset();
    send_up_ = nullptr;
    states.member.OnDisconnect(*connection);
  });
}

Result<ConnectionId> CommitGroup::OnMemberConnect(uint32_t index, const std::string& receiver_id,
                                                  std::shared_ptr<MemberConnection> connection) {
  ConnectionId id;
  {
    MutexLock lock(mutex_);
    if (stopping_) return UnavailableError("the leader is shutting down");
    if (index == 0 || index >= remotes_.size()) {
      return InvalidArgumentError(
          "receiver '{}' says it is member {} of group '{}', expected 1 to {}: 0 is the leader",
          receiver_id, index, place_.group_id, remotes_.size() - 1);
    }
    GroupRemote& remote = remotes_[index];
    if (remote.connection != nullptr && remote.receiver_id != receiver_id) {
      return AlreadyExistsError(
          "member {} of group '{}' is receiver '{}', which is connected: give receiver '{}' "
          "another --group-index",
          index, place_.group_id, remote.receiver_id, receiver_id);
    }
    for (uint32_t m = 0; m < remotes_.size(); ++m) {
      if (m == index || !remotes_[m].id.has_value() || remotes_[m].receiver_id != receiver_id) {
        continue;
      }
      return AlreadyExistsError(
          "receiver '{}' is member {} of group '{}' already: give member {} another --receiver-id",
          receiver_id, m, place_.group_id, index);
    }
    if (remote.connection != nullptr) {
      outbox_.push_back([fenced = std::move(remote.connection), receiver_id] {
        fenced->Close(
            AbortedError("receiver '{}' connected again, this connection is fenced", receiver_id));
      });
    }
    id = ConnectionId(++last_connection_);
    remote = {.receiver_id = receiver_id, .id = id, .connection = connection, .last_error = ""};
    outbox_.push_back([connection] { connection->Welcome(); });
    states_.leader->OnConnect(MemberIndex(index), id);
    news_ = true;
    Drive();
  }
  LogInfo("group_member_connected", {{"member", index}, {"receiver", receiver_id}});
  Deliver();
  return id;
}

void CommitGroup::OnUp(uint32_t index, ConnectionId connection, const GroupUp& message) {
  Apply([&](GroupStates&) {
    TellLeader(index, connection, message);
    news_ = true;
  });
}

void CommitGroup::OnMemberDisconnect(uint32_t index, ConnectionId connection) {
  Apply([&](GroupStates& states) {
    GroupRemote& remote = remotes_.at(index);
    if (remote.id != connection) return;
    LogWarning("group_member_disconnected", {{"member", index}, {"receiver", remote.receiver_id}});
    remote.id.reset();
    remote.connection.reset();
    states.leader->OnDisconnect(MemberIndex(index), connection);
    news_ = true;
  });
}

Status CommitGroup::Evict(uint32_t index, const std::string& reason) {
  {
    MutexLock lock(mutex_);
    if (!states_.leader.has_value()) {
      return FailedPreconditionError(
          "this is member {} of group '{}': ask its leader, the receiver at {}", place_.index,
          place_.group_id, place_.leader_address);
    }
    if (index >= remotes_.size()) {
      return InvalidArgumentError("group '{}' has no member {}, expected 0 to {}", place_.group_id,
                                  index, remotes_.size() - 1);
    }
    if (states_.leader->ended()) {
      return FailedPreconditionError("the engine of group '{}' has ended already", place_.group_id);
    }
    LogWarning("group_member_evicted",
               {{"member", index}, {"receiver", remotes_[index].receiver_id}, {"reason", reason}});
    states_.leader->Evict(MemberIndex(index), reason);
    news_ = true;
    Drive();
  }
  Deliver();
  return OkStatus();
}

void CommitGroup::ForEachConnection(void (*call)(MemberConnection&)) {
  for (const GroupRemote& remote : remotes_) {
    if (remote.connection == nullptr) continue;
    outbox_.push_back([call, connection = remote.connection] { call(*connection); });
  }
}

void CommitGroup::Tick() {
  Apply([this](GroupStates& states) {
    if (!states.leader.has_value()) return;
    const TimePoint now = clock_.Now();
    if (retry_at_.has_value() && now >= *retry_at_) {
      retry_at_.reset();
      states.leader->OnRetry();
    }
    if (now < next_keepalive_) return;
    next_keepalive_ = now + limits::kKeepaliveInterval;
    ForEachConnection([](MemberConnection& connection) { connection.Keepalive(); });
  });
}

void CommitGroup::Stop() {
  Apply([this](GroupStates&) {
    stopping_ = true;
    ForEachConnection([](MemberConnection& connection) {
      connection.Close(UnavailableError("the leader is shutting down"));
    });
  });
}

void CommitGroup::Drive() {
  while (true) {
    const std::vector<MemberAction> members = states_.member.TakeActions();
    std::vector<LeaderAction> leaders;
    if (states_.leader.has_value()) leaders = states_.leader->TakeActions();
    if (members.empty() && leaders.empty()) return;
    for (const MemberAction& action : members) {
      std::visit([this](const auto& one) { Act(one); }, action);
    }
    for (const LeaderAction& action : leaders) {
      std::visit([this](const auto& one) { Act(one); }, action);
    }
  }
}

void CommitGroup::Act(const SendUp& action) {
  if (leader_id_ != action.connection) return;
  if (place_.leads()) return TellLeader(0, action.connection, action.message);
  outbox_.push_back([send = send_up_, message = action.message] { send(message); });
}

void CommitGroup::TellLeader(uint32_t index, ConnectionId connection, const GroupUp& message) {
  GroupRemote& remote = remotes_.at(index);
  if (remote.id != connection) return;
  if (const auto* unable = std::get_if<GroupUnable>(&message)) {
    if (remote.last_error != unable->reason) {  // it is asked again and again
      LogWarning("group_unable", {{"member", index}, {"reason", unable->reason}});
    }
    remote.last_error = unable->reason;
  } else if (std::holds_alternative<GroupStaged>(message)) {
    remote.last_error.clear();
  }
  states_.leader->OnUp(MemberIndex(index), connection, message);
}

void CommitGroup::Act(const SendDown& action) {
  const uint32_t index = action.member.value();
  if (index == 0) return states_.member.OnDown(action.connection, action.message);
  const GroupRemote& remote = remotes_.at(index);
  if (remote.id != action.connection || remote.connection == nullptr) return;
  outbox_.push_back([connection = remote.connection, message = action.message] {
    connection->Send(message);
    if (std::holds_alternative<GroupCommit>(message.body)) {
      DWS_KILLPOINT("group.commit.after_send");
    }
  });
}

void CommitGroup::Act(const RetryLater&) {
  retry_at_ = clock_.Now() + retry_delay_;
  retry_delay_ = std::min<Duration>(retry_delay_ * 2, limits::kReconnectDelayMax);
}

template <typename Order>
void CommitGroup::Act(const Order& order) {
  if constexpr (std::is_same_v<Order, RecordSettled>) retry_delay_ = limits::kReconnectDelayMin;
  if constexpr (std::is_same_v<Order, EndEngine>) {
    LogError("group_ended", {{"reason", order.reason}});
    const Status reason = MakeStatus(
        absl::StatusCode::kPermissionDenied,
        fmt::format("its commit group has ended: restart the group's receivers, the leader "
                    "first, then the engine ({})",
                    order.reason));
    // Not under the lock: it calls the engine's connection.
    outbox_.push_back([this, reason] { registry_.EndForGood(reason); });
  }
  orders_.Add(order);
  news_ = true;
}

void CommitGroup::Deliver() {
  while (true) {
    std::function<void()> next;
    {
      MutexLock lock(mutex_);
      if (delivering_ || outbox_.empty()) break;
      delivering_ = true;
      next = std::move(outbox_.front());
      outbox_.pop_front();
    }
    next();
    MutexLock lock(mutex_);
    delivering_ = false;
  }
  bool news = false;
  {
    MutexLock lock(mutex_);
    news = std::exchange(news_, false);
  }
  if (news) changed_.Notify();
}

}  // namespace dws
