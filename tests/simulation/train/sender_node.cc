// Its own part: what it keeps over its end, what it opens, and what its rank asks for. The messages
// between senders are in sender_messages.cc.
#include "tests/simulation/train/sender_node.h"

#include "tests/simulation/train/train_world.h"

namespace dws::sim {
namespace {
constexpr Time kTick = kRoundTrip / 2;
}  // namespace

SenderNode::SenderNode(TrainWorld& world, uint32_t site, TrainerRank rank)
    : TrainNode(world, site, fmt::format("sender{}", rank.value()), rank) {}

HostMemory& SenderNode::memory() const { return *world().memories[rank().value()]; }

SenderNode& SenderNode::Peer(TrainerRank rank) const { return *world().senders[rank.value()]; }

void SenderNode::OnStart() {
  const uint32_t ranks = world().ranks;
  const RankEpoch epoch = world().NextEpoch();
  if (memory().record.has_value()) world().See("a sender finds its record");
  member_.emplace(rank(), epoch, memory().record);
  if (rank() == TrainerRank(0)) {
    leader_.emplace(ranks, LeaderTerm(epoch.value()), limits::kTrainPeerTimeoutDefault,
                    world().Now());
  }
  own_.emplace(
      PieceSums{.combined_for = {}, .state = AccumulateState(ranks, world().units, world().slots)});
  outbox_.emplace(ranks, world().slots);
  // What the last process had opened stays as it is.
  opened_ = member_->record().attempt;
  memory().outbox.resize(world().slots);
  links_.assign(ranks, nullptr);
  session_ = 0;
  Tick();
}

void SenderNode::OnCrash() {
  TrainNode::OnCrash();
  member_.reset();
  leader_.reset();
  own_.reset();
  combined_.clear();
  outbox_.reset();
  links_.clear();
  RankNode& node = *world().rank_nodes[rank().value()];
  if (node.up()) {
    node.Soon(1 + world().random.Below(100),
              [&node, session = session_] { node.OnSenderGone(session); });
  }
  world().OnDeath(rank());
}

void SenderNode::Tick() {
  for (uint32_t r = 0; r < rank().value(); ++r) Dial(TrainerRank(r));
  if (leader_.has_value()) leader_->Tick(world().Now());
  if (const auto report = member_->Report()) Send(TrainerRank(0), *report);
  Settle();
  if (up()) Soon(kTick, [this] { Tick(); });
}

Result<uint64_t> SenderNode::Attach(WeightVersion version, const Shard& weights) {
  DWS_RETURN_IF_ERROR(member_->OnRank(version));
  if (!memory().record.has_value()) memory().weights = weights;
  session_ = ++last_session_;
  Settle();
  TellRank();
  return session_;
}

void SenderNode::OnRankGone() {
  if (std::exchange(session_, 0) == 0) return;
  member_->OnRankLost();
  Settle();
}

Status SenderNode::Push(const AttemptId& attempt, UnitIndex unit,
                        const std::vector<int64_t>& by_owner) {
  const std::optional<OutboxSlot> slot = outbox_->FreeSlot();
  if (attempt == outbox_->attempt() && slot.has_value()) memory().outbox[slot->value()] = by_owner;
  DWS_RETURN_IF_ERROR(outbox_->Push(attempt, unit));
  world().truth.Pushed(attempt, unit, by_owner);
  Settle();
  return OkStatus();
}

Status SenderNode::Finish(const AttemptId& attempt, double weight) {
  DWS_RETURN_IF_ERROR(outbox_->Finish(attempt, weight));
  world().truth.Finished(attempt, rank(), weight);
  const Status status = member_->OnFinished(attempt);
  Settle();
  return status;
}

Status SenderNode::AskToAbandon(const AttemptId& attempt) {
  const Status status = member_->AskToAbandon(attempt, "a user's exception", rank());
  Settle();
  return status;
}

Status SenderNode::Publish(const StepDecision& step, WeightVersion version, const Shard& weights) {
  const uint64_t minibatch = step.attempt.minibatch;
  if (!step.finite) {
    DWS_RETURN_IF_ERROR(member_->OnSkipped(minibatch));
  } else {
    DWS_RETURN_IF_ERROR(member_->OnPublished(minibatch, version));
    memory().weights = weights;
    world().durable[rank().value()] = version;
    world().Trace("{} publishes version {}", name(), version.value());
    world().truth.Published(rank(), version, weights);
  }
  Settle();
  return OkStatus();
}

void SenderNode::Settle() {
  for (bool changed = true; changed;) {
    Seal();
    changed = member_->TakeChanged();
    if (changed) Save();
  }
  Combine();
  for (uint32_t r = 0; r < world().ranks; ++r) {
    Pull(*own_, TrainerRank(r));
    for (auto& [owner, sums] : combined_) Pull(sums, TrainerRank(r));
  }
  Forward();
  SendDue();
  CheckCaps();
}

void SenderNode::CheckCaps() {
  const auto check = [this](const PieceSums& sums) {
    for (uint32_t r = 0; r < world().ranks; ++r) {
      if (sums.state.queued(TrainerRank(r)) <= world().slots) continue;
      world().Violate("{} has queued more offers of rank {} than an outbox has slots", name(), r);
    }
  };
  check(*own_);
  for (const auto& [owner, sums] : combined_) check(sums);
  if (outbox_->in_use() > world().slots) world().Violate("{} uses more slots than exist", name());
}

// Rule 1 of minibatch_member_state.h.
void SenderNode::Save() {
  const MemberRecord& record = member_->record();
  if (!record.attempt.has_value() && record.version == WeightVersion(0)) return;
  const std::optional<MemberRecord> before = memory().record;
  memory().record = record;
  const bool stepped =
      record.step.has_value() && !(before.has_value() && before->step == record.step);
  if (stepped) {
    world().Trace("{} has Step of {}", name(), ToString(record.step->attempt));
    world().truth.CheckStep(rank(), record, memory());
  }
  world().CheckVersions();
  OpenAttempt();
  if (const auto report = member_->Report()) Send(TrainerRank(0), *report);
  TellRank();
}

void SenderNode::OpenAttempt() {
  const std::optional<AttemptId>& attempt = member_->record().attempt;
  if (!attempt.has_value() || opened_ == attempt) return;
  const std::optional<StepDecision>& last = member_->record().last_step;
  if (!last.has_value() || attempt != FirstAttemptAfter(last->attempt)) {
    world().truth.Abandoned(rank(), *attempt);
    if (opened_.has_value()) world().See("an attempt is abandoned");
  }
  opened_ = attempt;
  memory().sums.assign(world().units, -1);  // whatever was there: nothing is cleared
  memory().touched.assign(world().units, false);
  own_->waiting.clear();
  for (const TrainerRank early : own_->state.Open(*attempt)) {
    world().See("an offer comes before its attempt is open");
    Send(early, own_->state.wanted(early));
  }
  OpenCombined(*attempt);
  outbox_->Open(*attempt);
}

void SenderNode::Seal() {
  const std::optional<double> weight = own_->state.TakeSealed();
  if (!weight.has_value()) return;
  SealedGradient sealed{.weight = *weight};
  for (uint32_t u = 0; u < world().units; ++u) {
    memory().touched[u] = own_->state.touched(UnitIndex(u));
    if (!memory().touched[u]) continue;
    const auto sum = static_cast<double>(memory().sums[u]);
    sealed.finite = sealed.finite && memory().sums[u] < kInfinity / 2;
    sealed.sum_squares += sum * sum;
  }
  if (!sealed.finite) sealed.sum_squares = 0;
  const Status status = member_->OnSealed(own_->state.attempt(), sealed);
  if (!status.ok()) return Refused(status);
  world().truth.CheckSealed(rank(), member_->record(), memory());
}

void SenderNode::TellRank() {
  RankNode& node = *world().rank_nodes[rank().value()];
  if (session_ == 0 || !node.up()) return;
  const RankView view{.attempt = member_->record().attempt,
                      .open = member_->open(),
                      .step = member_->record().step};
  node.Soon(1, [&node, session = session_, view] { node.OnView(session, view); });
}

}  // namespace dws::sim
