#include "common/sync_state/group_leader_state.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace dws {
namespace {

// Versions of two streams with one incarnation are not above each other.
bool IsAbove(const VersionAt& version, const VersionAt& other) {
  if (version.stream == other.stream) return version.version > other.version;
  return version.stream.incarnation > other.stream.incarnation;
}

}  // namespace

GroupLeaderState::GroupLeaderState(size_t member_count, std::optional<VersionAt> decided,
                                   const CommitPolicy& policy)
    : members_(member_count), policy_(policy), decided_(decided) {
  DWS_CHECK(member_count > 0);
}

void GroupLeaderState::OnConnect(MemberIndex member, ConnectionId connection) {
  Member& entry = members_.at(member.value());
  entry = {};
  entry.connection = connection;
  unheld_.reset();  // until it has reported what it holds
  if (ended_.has_value()) return Send(member.value(), NextNonce(), *ended_);
  Lose();
}

void GroupLeaderState::OnDisconnect(MemberIndex member, ConnectionId connection) {
  Member& entry = members_.at(member.value());
  if (entry.connection != connection) return;
  entry = {};
  unheld_.reset();
  Lose();
}

void GroupLeaderState::OnUp(MemberIndex member, ConnectionId connection, const GroupUp& message) {
  Member& entry = members_.at(member.value());
  if (ended_.has_value() || entry.connection != connection) return;
  std::visit([&](const auto& body) { Hear(entry, body); }, message);
  Advance();
}

void GroupLeaderState::Hear(Member& member, const GroupReport& report) {
  // Rule 4: its answer to the COMMIT has not come yet.
  if (member.told.has_value() && report.seen < member.told->nonce) return;
  member.reported = true;
  member.generation = report.generation;
  member.live = report.live;
  member.released = report.released;
  const bool knows_round = round_.has_value() && report.seen >= round_->nonce;
  if (knows_round && report.held != round_->nonce) Lose();
}

void GroupLeaderState::Hear(Member& member, const GroupShare& share) {
  // One engine rank always holds the same, and comparing all members is slow.
  if (member.share.has_value() && member.share->generation == share.generation) return;
  member.share = share;
  LookForUnheld();
}

void GroupLeaderState::LookForUnheld() {
  std::vector<const EngineShare*> shares;
  for (const Member& member : members_) {
    if (!member.share.has_value()) return unheld_.reset();
    shares.push_back(&member.share->share);
  }
  unheld_ = FirstUnheld(shares);
}

void GroupLeaderState::Hear(Member& member, const GroupStaged& staged) {
  if (!round_.has_value() || round_->phase != Phase::kStaging || staged.round != round_->nonce ||
      staged.target != round_->target) {
    return;
  }
  if (staged.generation != member.generation) return;
  member.staged = true;
  if (!std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.staged; })) {
    return;
  }
  if (unheld_.has_value()) return Abort();  // rule 7: reported while PREPARE was on its way
  if (!Holds()) return Decide();
  const auto drains = [](const Member& m) { return m.drains; };
  if (std::any_of(members_.begin(), members_.end(), drains)) return Abort();
  round_->phase = Phase::kHeld;
  round_->was_held = true;
}

void GroupLeaderState::Decide() {
  round_->phase = Phase::kDeciding;
  actions_.emplace_back(RecordDecided{.round = round_->nonce, .version = round_->target});
}

bool GroupLeaderState::Holds() const {
  const std::optional<VersionAt> common = Common();
  const VersionAt& staged = round_->target;
  const bool newer =
      target_.has_value() && target_->stream == staged.stream && target_->version > staged.version;
  // Without a common version the engine is paused.
  return !MayCommitNow(policy_, {.live = common,
                                 .proved = common.has_value(),
                                 .resync = false,
                                 .newest = newer ? *target_ : staged});
}

RoundHold GroupLeaderState::hold() const {
  if (!round_.has_value() || !round_->was_held) return RoundHold::kNone;
  return round_->phase == Phase::kHeld ? RoundHold::kHeld : RoundHold::kUnderWay;
}

void GroupLeaderState::OnBoundary() {
  if (hold() == RoundHold::kHeld) Decide();
}

void GroupLeaderState::Hear(Member& member, const GroupUnable& unable) {
  if (!round_.has_value() || unable.round != round_->nonce) return;
  // A member that has staged the round finishes it, but does not hold it any longer.
  member.drains = member.staged;
  const bool gives_up = round_->phase == Phase::kStaging && !member.staged;
  if (gives_up || round_->phase == Phase::kHeld) Abort();
}

void GroupLeaderState::Hear(Member& member, const GroupCommitted& committed) {
  // A COMMITTED is cumulative, but this one answers an older COMMIT: the answer to the last COMMIT
  // has not come yet.
  if (!member.told.has_value() || committed.round != member.told->round ||
      committed.generation != member.generation) {
    return;
  }
  member.live = member.told->version;
  const bool committing = round_.has_value() && round_->phase == Phase::kCommitting;
  if (committing && Common() == round_->target) round_.reset();  // Advance settles and releases
}

void GroupLeaderState::OnDecided(const RecordDecided& decision, const Status& status) {
  if (status.ok()) decided_ = decision.version;  // also when the round was given up meanwhile
  if (round_.has_value() && round_->nonce == decision.round && round_->phase == Phase::kDeciding) {
    if (status.ok()) {
      round_->phase = Phase::kPausing;
      actions_.emplace_back(PauseEngine{.round = decision.round});
    } else {
      Abort();
    }
  }
  Advance();
}

void GroupLeaderState::OnPaused(GroupNonce round, const Status& status) {
  members_[0].released = false;  // in any case: its rank has stopped, or is about to
  if (round_.has_value() && round_->nonce == round && round_->phase == Phase::kPausing) {
    if (status.ok()) {
      SendCommits();
    } else {
      Abort();
    }
  }
  Advance();
}

void GroupLeaderState::OnTarget(const std::optional<VersionAt>& target) {
  target_ = target;
  // The versions of the round are no longer available, or no version is to be committed.
  if (!target_.has_value() && hold() == RoundHold::kHeld) Abort();
  Advance();
  ReplaceHeld();
}

// Members drop their staged version when the next PREPARE comes. This is not done once the version
// may be committed: otherwise the commit would be put off for as long as versions come faster than
// they are staged.
void GroupLeaderState::ReplaceHeld() {
  if (hold() != RoundHold::kHeld || !target_.has_value()) return;
  if (!IsAbove(*target_, round_->target) || !Reachable(*target_)) return;
  ++replaced_;
  StartRound(*target_);
  round_->was_held = true;
}

void GroupLeaderState::OnRetry() {
  waits_ = false;
  Advance();
}

void GroupLeaderState::OnForget(const StreamId& stream) {
  if (decided_.has_value() && decided_->stream == stream) decided_.reset();
  if (target_.has_value() && target_->stream == stream) target_.reset();
  if (round_.has_value() && round_->target.stream == stream) Lose();
  Advance();
}

void GroupLeaderState::Evict(MemberIndex member, const std::string& reason) {
  if (ended_.has_value()) return;
  ended_ = GroupEnd{.reason = fmt::format("member {} was evicted: {}", member.value(), reason)};
  round_.reset();
  unheld_.reset();
  SendAll(NextNonce(), *ended_);
  for (Member& entry : members_) entry = {.connection = entry.connection};
}

std::vector<LeaderAction> GroupLeaderState::TakeActions() { return std::exchange(actions_, {}); }

void GroupLeaderState::Lose() {
  if (!round_.has_value()) return;
  if (round_->phase != Phase::kCommitting) return Abort();
  round_.reset();  // rule 3: no way back; the next round goes on from here
}

void GroupLeaderState::Abort() {
  const GroupNonce round = round_->nonce;
  round_.reset();
  waits_ = true;
  SendAll(NextNonce(), GroupAbort{.round = round});
  actions_.emplace_back(RetryLater{});
}

void GroupLeaderState::SendCommits() {
  round_->phase = Phase::kCommitting;
  const GroupNonce nonce = NextNonce();
  SendAll(nonce, GroupCommit{.round = round_->nonce});
  for (Member& member : members_) {
    member.live.reset();
    member.released = false;
    member.told = {.nonce = nonce, .round = round_->nonce, .version = round_->target};
  }
}

bool GroupLeaderState::AllReported() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.reported && member.generation.has_value() && member.share.has_value() &&
           member.share->generation == member.generation;
  });
}

std::optional<VersionAt> GroupLeaderState::Common() const {
  const std::optional<VersionAt> first = members_.front().live;
  for (const Member& member : members_) {
    if (!member.live.has_value() || member.live != first) return std::nullopt;
  }
  return first;
}

bool GroupLeaderState::Reachable(const VersionAt& target) const {
  const auto not_above = [&](const std::optional<VersionAt>& version) {
    return !version.has_value() || *version == target || IsAbove(target, *version);
  };
  return not_above(decided_) && std::all_of(members_.begin(), members_.end(),
                                            [&](const Member& m) { return not_above(m.live); });
}

void GroupLeaderState::Settle(const VersionAt& version) {
  if (!decided_.has_value()) return;
  decided_.reset();
  actions_.emplace_back(RecordSettled{.version = version});
}

void GroupLeaderState::Advance() {
  // While members stage a round, the engine runs with the version that all have.
  const bool may_run =
      !round_.has_value() || round_->phase == Phase::kStaging || round_->phase == Phase::kHeld;
  if (ended_.has_value() || !may_run || !AllReported() || unheld_.has_value()) return;
  const std::optional<VersionAt> common = Common();
  if (common.has_value()) {
    Settle(*common);
    for (uint32_t m = 0; m < members_.size(); ++m) {
      if (members_[m].released) continue;
      members_[m].released = true;
      Send(m, NextNonce(), GroupResume{.version = *common, .generation = *members_[m].generation});
    }
  }
  if (hold() == RoundHold::kHeld && !Holds()) return Decide();
  if (round_.has_value() || waits_ || !target_.has_value()) return;
  if (common == target_ || !Reachable(*target_)) return;
  StartRound(*target_);
}

void GroupLeaderState::StartRound(const VersionAt& target) {
  round_ = Round{.nonce = NextNonce(), .target = target};
  for (Member& member : members_) member.staged = member.drains = false;
  SendAll(round_->nonce, GroupPrepare{.target = target});
}

GroupNonce GroupLeaderState::NextNonce() {
  last_nonce_ = GroupNonce(last_nonce_.value() + 1);
  return last_nonce_;
}

void GroupLeaderState::Send(uint32_t member, GroupNonce nonce, decltype(GroupDown::body) body) {
  const std::optional<ConnectionId>& connection = members_[member].connection;
  if (!connection.has_value()) return;
  actions_.emplace_back(SendDown{.member = MemberIndex(member),
                                 .connection = *connection,
                                 .message = {.nonce = nonce, .body = std::move(body)}});
}

void GroupLeaderState::SendAll(GroupNonce nonce, const decltype(GroupDown::body)& body) {
  for (uint32_t m = 0; m < members_.size(); ++m) Send(m, nonce, body);
}

}  // namespace dws
