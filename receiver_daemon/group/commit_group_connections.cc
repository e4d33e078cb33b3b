// The events of connections and of the clock for a CommitGroup, and the eviction of a member.
#include <algorithm>
#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "receiver_daemon/group/commit_group.h"

namespace dws {

ConnectionId CommitGroup::OnLeaderConnect(std::function<void(const GroupUp&)> send) {
  ConnectionId id;
  {
    MutexLock lock(mutex_);
    id = ConnectionId(++last_connection_);
    leader_id_ = id;
    send_up_ = std::move(send);
    last_error_.clear();
    member_.OnConnect(id);
    news_ = true;
    Drive();
  }
  Deliver();
  return id;
}

void CommitGroup::OnDown(ConnectionId connection, const GroupDown& message) {
  {
    MutexLock lock(mutex_);
    member_.OnDown(connection, message);
    news_ = true;
    Drive();
  }
  Deliver();
}

void CommitGroup::OnLeaderDisconnect(std::optional<ConnectionId> connection, const Status& reason) {
  {
    MutexLock lock(mutex_);
    last_error_ = std::string(Message(reason));
    news_ = true;
    if (connection.has_value() && leader_id_ == connection) {
      leader_id_.reset();
      send_up_ = nullptr;
      member_.OnDisconnect(*connection);
      Drive();
    }
  }
  Deliver();
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
    Remote& remote = remotes_[index];
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
    leader_->OnConnect(MemberIndex(index), id);
    news_ = true;
    Drive();
  }
  LogInfo("group_member_connected", {{"member", index}, {"receiver", receiver_id}});
  Deliver();
  return id;
}

void CommitGroup::OnUp(uint32_t index, ConnectionId connection, const GroupUp& message) {
  {
    MutexLock lock(mutex_);
    TellLeader(index, connection, message);
    news_ = true;
    Drive();
  }
  Deliver();
}

void CommitGroup::OnMemberDisconnect(uint32_t index, ConnectionId connection) {
  {
    MutexLock lock(mutex_);
    Remote& remote = remotes_.at(index);
    if (remote.id != connection) return;
    LogWarning("group_member_disconnected", {{"member", index}, {"receiver", remote.receiver_id}});
    remote.id.reset();
    remote.connection.reset();
    leader_->OnDisconnect(MemberIndex(index), connection);
    news_ = true;
    Drive();
  }
  Deliver();
}

Status CommitGroup::Evict(uint32_t index, const std::string& reason) {
  {
    MutexLock lock(mutex_);
    if (!leader_.has_value()) {
      return FailedPreconditionError(
          "this is member {} of group '{}': ask its leader, the receiver at {}", place_.index,
          place_.group_id, place_.leader_address);
    }
    if (index >= remotes_.size()) {
      return InvalidArgumentError("group '{}' has no member {}, expected 0 to {}", place_.group_id,
                                  index, remotes_.size() - 1);
    }
    if (leader_->ended()) {
      return FailedPreconditionError("the engine of group '{}' has ended already", place_.group_id);
    }
    LogWarning("group_member_evicted",
               {{"member", index}, {"receiver", remotes_[index].receiver_id}, {"reason", reason}});
    leader_->Evict(MemberIndex(index), reason);
    news_ = true;
    Drive();
  }
  Deliver();
  return OkStatus();
}

void CommitGroup::Tick() {
  {
    MutexLock lock(mutex_);
    if (!leader_.has_value()) return;
    const TimePoint now = clock_.Now();
    if (retry_at_.has_value() && now >= *retry_at_) {
      retry_at_.reset();
      leader_->OnRetry();
      Drive();
    }
    if (now >= next_keepalive_) {
      next_keepalive_ = now + limits::kKeepaliveInterval;
      for (const Remote& remote : remotes_) {
        if (remote.connection == nullptr) continue;
        outbox_.push_back([connection = remote.connection] { connection->Keepalive(); });
      }
    }
  }
  Deliver();
}

void CommitGroup::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const Remote& remote : remotes_) {
      if (remote.connection == nullptr) continue;
      outbox_.push_back([connection = remote.connection] {
        connection->Close(UnavailableError("the leader is shutting down"));
      });
    }
  }
  Deliver();
}

}  // namespace dws
