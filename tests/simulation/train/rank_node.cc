// A rank is driven by what its sender says last, so it does not matter which of the two has died,
// or how often.
#include "tests/simulation/train/rank_node.h"

#include "tests/simulation/train/sender_node.h"
#include "tests/simulation/train/train_world.h"

namespace dws::sim {
namespace {
constexpr Time kPoll = kRoundTrip / 8;
}  // namespace

RankNode::RankNode(TrainWorld& world, uint32_t site, TrainerRank rank)
    : TrainNode(world, site, fmt::format("rank{}", rank.value()), rank) {}

void RankNode::OnStart() {
  attempt_ = {};
  stepped_ = 0;
  Connect();
}

void RankNode::OnCrash() {
  TrainNode::OnCrash();
  version_.reset();
  session_.reset();
  ++work_;
  world().OnDeath(rank());
}

// A rank that starts again needs its optimizer's state, which it may have of the version that its
// sender, or its disk, has.
bool RankNode::LoadWeights() {
  if (version_.has_value()) return true;
  const HostMemory& memory = *world().memories[rank().value()];
  if (world().faulty && world().random.Chance(30)) {
    world().AskForRestart("a rank has no checkpoint of its version");
    return false;
  }
  if (memory.record.has_value()) {
    version_ = memory.record->version;
    weights_ = memory.weights;
    if (memory.record->step.has_value()) world().See("a rank finds the sealed gradient");
  } else {
    version_ = world().durable[rank().value()];
    weights_ = world().truth.Weights(rank(), *version_);
  }
  return true;
}

void RankNode::Connect() {
  SenderNode& sender = *world().senders[rank().value()];
  if (!session_.has_value() && sender.runs() && LoadWeights()) {
    Result<uint64_t> session = sender.Attach(*version_, weights_);
    if (session.ok()) {
      session_ = *session;
      return;
    }
    world().Trace("{} is refused: {}", name(), Message(session.status()));
    world().AskForRestart("a rank is refused");
  }
  if (!session_.has_value()) Soon(kPoll, [this] { Connect(); });
}

void RankNode::OnSenderGone(uint64_t session) {
  if (session_ != session) return;
  session_.reset();
  Connect();
}

void RankNode::OnView(uint64_t session, const RankView& view) {
  if (session_ != session) return;
  if (view.step.has_value()) return Step(*view.step);
  if (view.open && *view.attempt > attempt_) Begin(*view.attempt);
}

void RankNode::Begin(const AttemptId& attempt) {
  if (attempt.minibatch > world().last_minibatch) return;
  Random& random = world().random;
  attempt_ = attempt;
  weight_ = static_cast<double>(random.Below(9));
  const auto pushes = static_cast<uint32_t>(random.Below(2 * world().units + 2));
  world().Trace("{} begins {} with {} pushes", name(), ToString(attempt), pushes);
  if (pushes == 0) world().See("a rank has no microbatch");
  Compute(++work_, pushes);
}

void RankNode::Compute(uint64_t work, uint32_t pushes) {
  Soon(world().random.Below(world().compute) + 1, [this, work, pushes] {
    if (work == work_) PushOne(work, pushes);
  });
}

// Reads every owner's part of its version.
bool RankNode::CanGather() {
  for (uint32_t o = 0; o < world().ranks; ++o) {
    const HostMemory& memory = *world().memories[o];
    if (!world().senders[o]->up() || !memory.record.has_value()) return false;
    if (memory.record->version < *version_) return false;
    if (memory.record->version > *version_) {
      world().Violate("{} gathers version {} from rank {}, which is at {}", name(),
                      version_->value(), o, memory.record->version.value());
      return false;
    }
    world().truth.CheckWeights(TrainerRank(o), *version_, memory.weights);
  }
  return true;
}

void RankNode::PushOne(uint64_t work, uint32_t pushes) {
  Random& random = world().random;
  SenderNode& sender = *world().senders[rank().value()];
  if (!session_.has_value() || !sender.runs() || !CanGather()) return Compute(work, pushes);
  if (world().faulty && random.Chance(5)) {
    world().See("a rank asks to abandon");
    (void)sender.AskToAbandon(attempt_);
  }
  if (pushes == 0) return End(work);
  std::vector<int64_t> by_owner(world().ranks);
  for (int64_t& gradient : by_owner) gradient = static_cast<int64_t>(random.Between(1, 1000));
  if (random.Chance(4)) by_owner[random.Below(world().ranks)] += kInfinity;
  const UnitIndex unit(static_cast<uint32_t>(random.Below(world().units)));
  const Status status = sender.Push(attempt_, unit, by_owner);
  if (status.ok()) return Compute(work, pushes - 1);
  if (absl::IsResourceExhausted(status)) {
    world().See("a rank waits for a slot");
    return Compute(work, pushes);
  }
  // Abandoned: the next attempt will come.
}

void RankNode::End(uint64_t work) {
  SenderNode& sender = *world().senders[rank().value()];
  const Status status = sender.Finish(attempt_, weight_);
  if (!status.ok()) world().Trace("{} cannot finish: {}", name(), Message(status));
  ++work_;
  (void)work;
}

void RankNode::Step(const StepDecision& step) {
  if (step.attempt.minibatch <= stepped_) return;
  stepped_ = step.attempt.minibatch;
  ++work_;
  const HostMemory& memory = *world().memories[rank().value()];
  Shard next = weights_;
  for (uint32_t u = 0; u < world().units; ++u) {
    if (memory.touched[u]) next[u] += memory.sums[u];
  }
  Soon(world().random.Below(world().compute) + 1, [this, step, next] { Publish(step, next); });
}

void RankNode::Publish(const StepDecision& step, const Shard& next) {
  SenderNode& sender = *world().senders[rank().value()];
  if (!session_.has_value() || !sender.runs()) {
    world().See("a rank waits for its sender to publish");
    return Soon(kPoll, [this, step, next] { Publish(step, next); });
  }
  if (step.finite) {
    version_ = WeightVersion(version_->value() + 1);
    weights_ = next;
  }
  const Status status = sender.Publish(step, *version_, weights_);
  if (!status.ok()) world().Violate("{} cannot publish: {}", name(), Message(status));
}

}  // namespace dws::sim
