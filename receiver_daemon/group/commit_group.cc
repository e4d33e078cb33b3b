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
  if (!leads()) return;
  leader_.emplace(place_.member_count, decided, policy);
  remotes_.resize(place_.member_count);
  leader_id_ = ConnectionId(++last_connection_);
  remotes_[0] = {.receiver_id = std::move(receiver_id),
                 .id = leader_id_,
                 .connection = nullptr,
                 .last_error = ""};
  MutexLock lock(mutex_);
  leader_->OnConnect(MemberIndex(0), *leader_id_);
  member_.OnConnect(*leader_id_);
  Drive();
}

std::vector<GroupOrder> CommitGroup::TakeOrders() {
  MutexLock lock(mutex_);
  std::vector<GroupOrder> orders(std::make_move_iterator(orders_.begin()),
                                 std::make_move_iterator(orders_.end()));
  orders_.clear();
  return orders;
}

bool CommitGroup::has_orders() const {
  MutexLock lock(mutex_);
  return !orders_.empty();
}

bool CommitGroup::Wants(const StageOrder& order) const {
  MutexLock lock(mutex_);
  return order.attempt == attempt_;
}

void CommitGroup::OnEngine(std::optional<Generation> generation, EngineShare share,
                           LayoutSetPtr layouts) {
  {
    MutexLock lock(mutex_);
    layouts_ = std::move(layouts);
    // Pending releases were meant for the engine that is gone.
    DropReleases();
    member_.OnEngine(generation, std::move(share));
    Drive();
  }
  Deliver();
}

void CommitGroup::OnProved(Generation generation, const VersionAt& version) {
  {
    MutexLock lock(mutex_);
    member_.OnProved(generation, version);
    Drive();
  }
  Deliver();
}

void CommitGroup::OnDrift() {
  {
    MutexLock lock(mutex_);
    member_.OnPaused();
    member_.OnUnproved();
    Drive();
  }
  Deliver();
}

void CommitGroup::OnResync() {
  {
    MutexLock lock(mutex_);
    member_.OnUnproved();
    Drive();
  }
  Deliver();
}

void CommitGroup::OnForget(const StreamId& stream) {
  {
    MutexLock lock(mutex_);
    if (!leader_.has_value()) return;
    leader_->OnForget(stream);
    Drive();
  }
  Deliver();
}

void CommitGroup::OnDrain() {
  {
    MutexLock lock(mutex_);
    member_.OnDrain();
    Drive();
  }
  Deliver();
}

void CommitGroup::OnBoundary() {
  {
    MutexLock lock(mutex_);
    if (!leader_.has_value()) return;
    leader_->OnBoundary();
    Drive();
  }
  Deliver();
}

CommitGroup::Hold CommitGroup::hold() const {
  MutexLock lock(mutex_);
  if (!leader_.has_value()) return {};
  Hold hold{.state = leader_->hold(), .round = std::nullopt, .replaced = leader_->replaced()};
  if (leader_->round().has_value()) hold.round = leader_->round()->nonce;
  return hold;
}

void CommitGroup::OnStaged(const StageOrder& order, std::optional<WeightVersion> base,
                           const Status& status) {
  {
    MutexLock lock(mutex_);
    if (order.attempt != attempt_) return;  // dropped meanwhile
    member_.OnStaged(order.what.round, base, status);
    Drive();
  }
  Deliver();
}

void CommitGroup::OnWritten(GroupNonce round, const Status& status, bool untouched) {
  {
    MutexLock lock(mutex_);
    member_.OnWritten(round, status, untouched);
    Drive();
  }
  Deliver();
}

void CommitGroup::OnTarget(const std::optional<VersionAt>& target) {
  {
    MutexLock lock(mutex_);
    if (!leader_.has_value()) return;
    leader_->OnTarget(target);
    Drive();
  }
  Deliver();
}

void CommitGroup::OnDecided(const RecordDecided& decision, const Status& status) {
  {
    MutexLock lock(mutex_);
    leader_->OnDecided(decision, status);
    Drive();
  }
  Deliver();
}

void CommitGroup::OnPaused(GroupNonce round, const Status& status) {
  {
    MutexLock lock(mutex_);
    member_.OnPaused();
    leader_->OnPaused(round, status);
    Drive();
  }
  Deliver();
}

void CommitGroup::Drive() {
  while (true) {
    const std::vector<MemberAction> members = member_.TakeActions();
    std::vector<LeaderAction> leaders;
    if (leader_.has_value()) leaders = leader_->TakeActions();
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
  if (leads()) return TellLeader(0, action.connection, action.message);
  outbox_.push_back([send = send_up_, message = action.message] { send(message); });
}

void CommitGroup::TellLeader(uint32_t index, ConnectionId connection, const GroupUp& message) {
  Remote& remote = remotes_.at(index);
  if (remote.id != connection) return;
  if (const auto* unable = std::get_if<GroupUnable>(&message)) {
    if (remote.last_error != unable->reason) {  // it is asked again and again
      LogWarning("group_unable", {{"member", index}, {"reason", unable->reason}});
    }
    remote.last_error = unable->reason;
  } else if (std::holds_alternative<GroupStaged>(message)) {
    remote.last_error.clear();
  }
  leader_->OnUp(MemberIndex(index), connection, message);
}

void CommitGroup::Act(const SendDown& action) {
  const uint32_t index = action.member.value();
  if (index == 0) return member_.OnDown(action.connection, action.message);
  const Remote& remote = remotes_.at(index);
  if (remote.id != action.connection || remote.connection == nullptr) return;
  outbox_.push_back([connection = remote.connection, message = action.message] {
    connection->Send(message);
    if (std::holds_alternative<GroupCommit>(message.body)) {
      DWS_KILLPOINT("group.commit.after_send");
    }
  });
}

void CommitGroup::Act(const StageTarget& action) {
  orders_.push_back(StageOrder{.attempt = ++attempt_, .what = action});
  news_ = true;
}

void CommitGroup::Act(const DropStaged& action) {
  ++attempt_;  // staging in progress is void
  // What has not begun need not begin: a worker that is busy for long finds few orders.
  std::erase_if(orders_, [](const GroupOrder& order) {
    return std::holds_alternative<StageOrder>(order) || std::holds_alternative<DropStaged>(order);
  });
  orders_.push_back(action);
  news_ = true;
}

void CommitGroup::Act(const RetryLater&) {
  retry_at_ = clock_.Now() + retry_delay_;
  retry_delay_ = std::min<Duration>(retry_delay_ * 2, limits::kReconnectDelayMax);
}

void CommitGroup::Act(const EndEngine& action) {
  LogError("group_ended", {{"reason", action.reason}});
  const Status reason = MakeStatus(
      absl::StatusCode::kPermissionDenied,
      fmt::format("its commit group has ended: restart the group's receivers, the leader "
                  "first, then the engine ({})",
                  action.reason));
  outbox_.push_back([this, reason] { registry_.EndForGood(reason); });
  orders_.push_back(action);
  news_ = true;
}

void CommitGroup::DropReleases() {
  std::erase_if(orders_, [](const GroupOrder& order) {
    return std::holds_alternative<ReleaseEngine>(order);
  });
}

template <typename Order>
void CommitGroup::Act(const Order& order) {
  if constexpr (std::is_same_v<Order, RecordSettled>) retry_delay_ = limits::kReconnectDelayMin;
  // Only the last release counts.
  if constexpr (std::is_same_v<Order, ReleaseEngine>) DropReleases();
  orders_.push_back(order);
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
