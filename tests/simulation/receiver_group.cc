// What makes a receiver the member, and the leader, of a commit group.
#include <algorithm>
#include <limits>
#include <utility>

#include "tests/simulation/receiver.h"
#include "tests/simulation/sender.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

constexpr Time kReconnectDelay = kRoundTrip / 2;
constexpr Time kRetryDelay = kRoundTrip;
constexpr GroupNonce kAnyNonce(std::numeric_limits<uint64_t>::max());

// Takes what a member says for the answer to what it was asked last, whatever it answered.
GroupUp MakeFit(const GroupUp& message, const GroupLeaderState& leader, MemberIndex member) {
  const auto& told = leader.members()[member.value()].told;
  if (const auto* report = std::get_if<GroupReport>(&message); report != nullptr) {
    GroupReport fits = *report;
    if (told.has_value()) fits.seen = std::max(fits.seen, told->nonce);
    return fits;
  }
  if (!leader.round().has_value()) return message;
  const GroupLeaderState::Round& round = *leader.round();
  const auto* staged = std::get_if<GroupStaged>(&message);
  const auto* committed = std::get_if<GroupCommitted>(&message);
  if (staged == nullptr && committed == nullptr) return message;
  const Generation generation = staged != nullptr ? staged->generation : committed->generation;
  if (round.phase == GroupLeaderState::Phase::kCommitting) {
    return GroupCommitted{.round = round.nonce, .version = round.target, .generation = generation};
  }
  return GroupStaged{
      .round = round.nonce, .target = round.target, .base = {}, .generation = generation};
}

}  // namespace

void Receiver::ConnectToLeader() {
  After(kReconnectDelay, [this] {
    Receiver& leader = *group_.members->front();
    if (!leader.up() || world().network.Loses(*this, leader)) return ConnectToLeader();
    const LinkPtr link = world().network.Connect(*this, leader);
    leader_link_ = link;
    link->on_closed[Link::kClient] = Alive([this, id = link->id()] {
      if (leader_link_ == nullptr || leader_link_->id() != id) return;
      leader_link_.reset();
      member_->OnDisconnect(id);
      RunMember();
      ConnectToLeader();
    });
    link->Send(Link::kClient,
               [&leader, link, index = group_.index] { leader.OnMemberConnect(index, link); });
    member_->OnConnect(link->id());
    RunMember();
  });
}

void Receiver::OnMemberConnect(uint32_t member, const LinkPtr& link) {
  if (member_links_[member] != nullptr) member_links_[member]->Close(Link::kServer);
  member_links_[member] = link;
  link->on_closed[Link::kServer] = Alive([this, member, id = link->id()] {
    if (member_links_[member] == nullptr || member_links_[member]->id() != id) return;
    member_links_[member].reset();
    if (leader_->round().has_value() &&
        leader_->round()->phase == GroupLeaderState::Phase::kCommitting) {
      world().See("a group loses a member in a COMMIT");
    }
    BreakRulesOnLoss();
    leader_->OnDisconnect(MemberIndex(member), id);
    RunLeader();
  });
  leader_->OnConnect(MemberIndex(member), link->id());
  RunLeader();
}

void Receiver::RunMember() {
  for (const MemberAction& action : member_->TakeActions()) {
    std::visit([this](const auto& one) { Act(one); }, action);
  }
}

void Receiver::RunLeader() {
  for (const LeaderAction& action : leader_->TakeActions()) {
    std::visit([this](const auto& one) { Act(one); }, action);
  }
}

void Receiver::Act(const SendUp& action) {
  const LinkPtr link = leader_link_;
  if (link == nullptr || link->id() != action.connection) return;
  Receiver& leader = *group_.members->front();
  link->Send(Link::kClient, [&leader, link, index = group_.index, message = action.message] {
    if (leader.member_links_[index] != link) return;
    const bool fits = leader.world().options.mutation == Mutation::kAcceptStaleNonce;
    leader.leader_->OnUp(MemberIndex(index), link->id(),
                         fits ? MakeFit(message, *leader.leader_, MemberIndex(index)) : message);
    leader.RunLeader();
  });
}

void Receiver::Act(const SendDown& action) {
  const LinkPtr link = member_links_[action.member.value()];
  if (link == nullptr || link->id() != action.connection) return;
  if (std::holds_alternative<GroupCommit>(action.message.body)) world().See("a group commits");
  if (std::holds_alternative<GroupAbort>(action.message.body)) world().See("a group aborts");
  if (const auto* resume = std::get_if<GroupResume>(&action.message.body)) {
    group_before_ = resume->version;
  }
  Receiver& member = *(*group_.members)[action.member.value()];
  link->Send(Link::kServer, [&member, link, message = action.message] {
    if (member.leader_link_ == link) member.OnDown(link->id(), message);
  });
}

void Receiver::OnDown(ConnectionId connection, GroupDown message) {
  const bool broken = world().options.mutation == Mutation::kAbortAfterCommit;
  if (broken && message.nonce == kAnyNonce) {
    return engine_.Resume(attachment_, std::get<GroupResume>(message.body).version);
  }
  member_->OnDown(connection, message);
  RunMember();
}

// Only when a mutation asks for it: the leader takes a COMMIT back.
void Receiver::BreakRulesOnLoss() {
  if (world().options.mutation != Mutation::kAbortAfterCommit || !group_before_.has_value()) return;
  if (!leader_->round().has_value()) return;
  if (leader_->round()->phase != GroupLeaderState::Phase::kCommitting) return;
  for (uint32_t m = 0; m < member_links_.size(); ++m) {
    if (member_links_[m] == nullptr) continue;
    Act(SendDown{.member = MemberIndex(m),
                 .connection = member_links_[m]->id(),
                 .message = {.nonce = kAnyNonce,
                             .body = GroupResume{.version = *group_before_, .generation = {}}}});
  }
}

// What the group is to reach, when this member too can fetch it.
std::optional<SyncTarget> Receiver::GroupTarget(const VersionAt& at) const {
  if (disk_.state().stream() != at.stream || subscription_->stream() != at.stream) {
    return std::nullopt;
  }
  return subscription_->TargetAt(at.version);
}

void Receiver::Act(const StageTarget& action) {
  if (busy_ || kicked_ || !live_.known()) {
    to_stage_ = action;
    return Kick();
  }
  busy_ = staging_ = true;
  const uint64_t attempt = ++attempt_;
  const auto end = [this, attempt, round = action.round](PreparedPtr prepared,
                                                         const Status& status) {
    if (attempt != attempt_) return;  // dropped meanwhile
    staging_ = false;
    world().Trace("{} has staged: {}", name(), ToString(status));
    staged_ = status.ok() ? prepared : nullptr;
    member_->OnStaged(round, status.ok() ? prepared->base : std::nullopt, status);
    RunMember();
    Finish(OkStatus());
  };
  const auto target = GroupTarget(action.target);
  if (!target.has_value()) {
    // It may be about to hear of it.
    return After(2 * kRoundTrip, [this, attempt, action, end] {
      if (attempt != attempt_) return;
      const auto later = GroupTarget(action.target);
      if (!later.has_value()) return end(nullptr, UnavailableError("the version is not offered"));
      Prepare(*later, Way::kDelta, [end](PreparedPtr p) { end(p, p->status); });
    });
  }
  Prepare(*target, Way::kDelta, [end](PreparedPtr p) { end(p, p->status); });
}

void Receiver::Act(const DropStaged&) {
  staged_.reset();
  to_stage_.reset();
  ++attempt_;
  if (std::exchange(staging_, false)) busy_ = false;
  Kick();
}

void Receiver::Act(const WriteStaged& action) {
  busy_ = true;
  Begin(std::exchange(staged_, nullptr), false,
        [this, round = action.round](const Status& status, bool untouched) {
          world().Trace("{} has written: {}", name(), ToString(status));
          if (!status.ok()) world().See("a member cannot write");
          member_->OnWritten(round, status, untouched);
          RunMember();
          Finish(OkStatus());
        });
}

void Receiver::Act(const ReleaseEngine& action) { engine_.Resume(attachment_, action.version); }

void Receiver::Act(const EndEngine&) { engine_.OnReceiverGone(); }

void Receiver::Act(const RecordDecided& action) {
  world().Trace("{} decides on {}:{}", name(), action.version.stream.incarnation,
                action.version.version.value());
  disk_.Append(GroupDecided{.stream = action.version.stream, .version = action.version.version},
               [this, action](const Status& status) {
                 leader_->OnDecided(action, status);
                 RunLeader();
               });
}

void Receiver::Act(const RecordSettled& action) {
  disk_.Append(GroupSettled{.stream = action.version.stream, .version = action.version.version},
               [](const Status&) {});
}

void Receiver::Act(const PauseEngine& action) {
  const auto answer = std::make_shared<Status>();
  const auto go_on = Alive([this, action, answer] {
    world().Trace("{} has paused the engine: {}", name(), ToString(*answer));
    member_->OnPaused();
    leader_->OnPaused(action.round, *answer);
    RunLeader();
  });
  engine_.Pause(attachment_, [answer, go_on](const Status& status) {
    *answer = status;
    go_on();
  });
}

void Receiver::Act(const RetryLater&) {
  After(kRetryDelay, [this] {
    leader_->OnRetry();
    RunLeader();
  });
}

}  // namespace dws::sim
