#include "common/sync_state/group_member_state.h"

#include <utility>

namespace dws {

void GroupMemberState::OnConnect(ConnectionId connection) {
  if (ended_) return;
  Drop();
  connection_ = connection;
  seen_ = GroupNonce(0);
  SendShare();
  Report();
}

void GroupMemberState::OnDisconnect(ConnectionId connection) {
  if (connection_ != connection) return;
  Drop();
  connection_.reset();
}

void GroupMemberState::OnDown(ConnectionId connection, const GroupDown& message) {
  if (ended_ || connection_ != connection || message.nonce <= seen_) return;
  seen_ = message.nonce;
  std::visit([&](const auto& body) { Obey(message.nonce, body); }, message.body);
}

void GroupMemberState::Obey(GroupNonce nonce, const GroupPrepare& prepare) {
  if (phase_ != Phase::kWriting) Drop();
  pending_ = StageTarget{.round = nonce, .target = prepare.target};
  BeginPending();
}

void GroupMemberState::BeginPending() {
  if (phase_ != Phase::kIdle || !pending_.has_value() || !generation_.has_value()) return;
  const StageTarget next = *std::exchange(pending_, std::nullopt);
  if (live_.has_value() && live_->stream == next.target.stream &&
      live_->version > next.target.version) {
    return Send(
        GroupUnable{.round = next.round,
                    .reason = fmt::format("version {} is committed, {} is below it",
                                          live_->version.value(), next.target.version.value())});
  }
  phase_ = Phase::kStaging;
  round_ = next.round;
  target_ = next.target;
  actions_.emplace_back(next);
}

void GroupMemberState::OnStaged(GroupNonce round, std::optional<WeightVersion> base,
                                const Status& status) {
  if (phase_ != Phase::kStaging || round != round_) return;
  if (!status.ok()) {
    phase_ = Phase::kIdle;
    return Send(GroupUnable{.round = round, .reason = std::string(Message(status))});
  }
  phase_ = Phase::kStaged;
  Send(GroupStaged{.round = round, .target = target_, .base = base, .generation = *generation_});
}

void GroupMemberState::OnDrain() {
  if (phase_ != Phase::kStaged) return;
  Send(GroupUnable{.round = round_, .reason = "drained by an operator"});
}

void GroupMemberState::Obey(GroupNonce, const GroupCommit& commit) {
  // A COMMIT for a round other than the held one cannot be carried out: the report tells the leader
  // why.
  if (phase_ != Phase::kStaged || commit.round != round_) return Report();
  phase_ = Phase::kWriting;
  write_ = Write{.connection = *connection_, .generation = *generation_, .before = live_};
  live_.reset();
  released_ = false;
  actions_.emplace_back(WriteStaged{.round = round_});
}

void GroupMemberState::OnWritten(GroupNonce round, const Status& status, bool untouched) {
  if (phase_ != Phase::kWriting || round != round_) return;
  phase_ = Phase::kIdle;
  const bool same_engine = generation_ == write_.generation;
  if (same_engine && status.ok()) live_ = target_;
  if (same_engine && !status.ok() && untouched) live_ = write_.before;
  if (same_engine && status.ok() && connection_ == write_.connection) {
    Send(GroupCommitted{.round = round, .version = target_, .generation = write_.generation});
  } else {
    Report();
  }
  BeginPending();
}

void GroupMemberState::Obey(GroupNonce, const GroupAbort& abort) {
  if (pending_.has_value() && pending_->round == abort.round) pending_.reset();
  if (phase_ == Phase::kWriting || round_ != abort.round) return;
  Drop();
}

void GroupMemberState::Obey(GroupNonce, const GroupResume& resume) {
  const bool known = live_ == resume.version && generation_ == resume.generation;
  if (phase_ == Phase::kWriting || !known) return Report();
  released_ = true;
  actions_.emplace_back(ReleaseEngine{.version = resume.version});
}

void GroupMemberState::Obey(GroupNonce, const GroupEnd& end) {
  Drop();
  ended_ = true;
  released_ = false;
  live_.reset();
  actions_.emplace_back(EndEngine{.reason = end.reason});
}

void GroupMemberState::OnEngine(std::optional<Generation> generation, EngineShare share) {
  generation_ = generation;
  share_ = std::move(share);
  live_.reset();
  released_ = false;
  Drop();
  SendShare();
  Report();
}

void GroupMemberState::OnProved(Generation generation, const VersionAt& version) {
  if (generation_ != generation || phase_ == Phase::kWriting) return;
  live_ = version;
  Report();
}

void GroupMemberState::OnUnproved() {
  if (phase_ == Phase::kWriting) write_.before.reset();
  if (!live_.has_value()) return;
  live_.reset();
  Drop();
  Report();
}

std::vector<MemberAction> GroupMemberState::TakeActions() { return std::exchange(actions_, {}); }

void GroupMemberState::Drop() {
  pending_.reset();
  if (phase_ != Phase::kStaging && phase_ != Phase::kStaged) return;
  phase_ = Phase::kIdle;
  actions_.emplace_back(DropStaged{});
}

void GroupMemberState::SendShare() {
  if (generation_.has_value()) Send(GroupShare{.generation = *generation_, .share = share_});
}

void GroupMemberState::Report() {
  std::optional<GroupNonce> held;
  if (phase_ != Phase::kIdle) held = round_;
  if (pending_.has_value()) held = pending_->round;
  Send(GroupReport{.seen = seen_,
                   .held = held,
                   .generation = generation_,
                   .live = live_,
                   .released = released_});
}

void GroupMemberState::Send(GroupUp message) {
  if (!connection_.has_value()) return;
  actions_.emplace_back(SendUp{.connection = *connection_, .message = std::move(message)});
}

}  // namespace dws
