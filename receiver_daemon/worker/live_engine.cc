// Memory is read in full when an engine attaches, and after a commit that failed half-way: nothing
// else says which version it has. From then on the version is known, because memory is written only
// by commits, and by full tensors that arrive for memory without a version (MayWriteNow). What
// those write is unknown until a commit.
#include "receiver_daemon/worker/live_engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "receiver_daemon/commit/commit_pipeline.h"

namespace dws {

bool LiveEngine::Attach() {
  const Result<LayoutSetPtr> layouts = parts_.subscription.Layouts();
  if (layouts.ok() && MayFollow(**layouts)) Follow(*layouts);
  std::optional<AttachedEngine> engine = parts_.registry.Engine();
  if (!engine.has_value()) {
    Forget();
    parts_.board.SetReadiness(false, parts_.registry.Missing());
    return false;
  }
  const bool same = weights_ != nullptr && weights_->generation() == engine->generation;
  if (same && weights_->layouts().SameAs(*engine->layouts)) return true;
  // A slice that is known to be wrong stays wrong: the engine must not compute with it while
  // everything is read again.
  if (same && live_.drifted && MayCommit(*live_.at)) static_cast<void>(Pause());
  const std::optional<VersionAt> before = same && live_.proved() ? live_.at : std::nullopt;
  Forget();
  before_ = before;
  Result<EngineWeightsPtr> weights = EngineWeights::Create(
      engine->layouts, engine->memory, parts_.registry.coverage(), options_.cuda);
  if (!weights.ok()) {
    parts_.registry.EndAll(weights.status());
    parts_.board.SetReadiness(false, std::string(Message(weights.status())));
    return false;
  }
  weights_ = *std::move(weights);
  engine_ = std::move(engine);
  parts_.board.SetPaused(!AllRun());
  return true;
}

bool LiveEngine::Read() {
  DWS_CHECK(weights_ != nullptr);
  if (live_.known()) return true;
  const TimePoint begin = parts_.clock.Now();
  std::vector<LiveState::Rank> ranks;
  for (uint32_t r = 0; r < weights_->layouts().world_size(); ++r) {
    Result<std::vector<SliceState>> states = weights_->ComputeStates(TrainerRank(r), parts_.pool);
    if (!states.ok()) {
      Lose(states.status());
      return false;
    }
    DWS_CHECK(states->size() == weights_->layouts().rank(TrainerRank(r)).slice_count());
    ranks.push_back({.slices = *std::move(states), .published = {}, .state_token = {}});
  }
  live_.ranks = std::move(ranks);
  const std::optional<VersionAt> before = std::exchange(before_, std::nullopt);
  if (before.has_value()) Restate(*before);
  ++readings_;
  known_since_ = parts_.clock.Now();
  LogInfo("digests_computed", {{"generation", weights_->generation().value()},
                               {"seconds", ToSeconds(parts_.clock.Now() - begin)}});
  DWS_KILLPOINT("receiver.attach.after_digests");
  return true;
}

// A version that is known to be complete is not given up before senders offer versions with the new
// cuts, nor while some senders have not made theirs: each change costs a reading of all memory.
bool LiveEngine::MayFollow(const LayoutSet& layouts) const {
  const bool keeps = weights_ != nullptr && live_.at.has_value() &&
                     live_.at->stream == parts_.subscription.stream() &&
                     !weights_->layouts().SameAs(layouts);
  return !keeps || (parts_.subscription.Target().has_value() && !parts_.subscription.Cutting());
}

void LiveEngine::Follow(const LayoutSetPtr& layouts) {
  // A commit group counts on what its members hold, slice by slice.
  if (!options_.runs_when_proved && weights_ != nullptr && !weights_->layouts().SameAs(*layouts)) {
    parts_.registry.EndAll(AbortedError("the trainer's layout was refined: attach again"));
  }
  const bool senders_cut = parts_.subscription.Want(Subscription::Needed::kAttached, needed_).ok();
  needed_ = parts_.registry.Follow(layouts, senders_cut);
  static_cast<void>(parts_.subscription.Want(Subscription::Needed::kAttached, needed_));
}

LiveEngine::Proof LiveEngine::Prove(const VersionAt& before) {
  const std::optional<SyncTarget> target = parts_.subscription.TargetAt(before.version);
  if (!target.has_value() || target->at() != before || !weights_->layouts().Fits(*target)) {
    return Proof::kUnknown;
  }
  const Result<size_t> differ = parts_.preparer.DescribeAll(*target, live_);
  if (!differ.ok()) return Proof::kUnknown;
  if (*differ == 0) return Proof::kSame;
  CountDrift(&MismatchCounts::attach, *differ);
  return Proof::kDiffers;
}

void LiveEngine::Restate(const VersionAt& before) {
  const Proof proof = Prove(before);
  if (proof == Proof::kUnknown) {
    for (LiveState::Rank& rank : live_.ranks) rank.published.clear();
    return;
  }
  live_.at = before;
  live_.drifted = proof == Proof::kDiffers;
  if (live_.drifted) {
    LogError("memory_differs_by_other_cuts",
             {{"version", before.version.value()}, {"reason", DriftReason()}});
  } else if (MayCommit(before)) {
    const Status paused = Pause();
    if (!paused.ok()) LogWarning("engine_not_restated", {{"reason", Message(paused)}});
    static_cast<void>(Control().Resume(VersionOf(live_)));  // always OK
    return OnResumed();
  }
  Show();
}

void LiveEngine::Lose(const Status& why) {
  const Status reason = UnavailableError("live memory cannot be read: {}", Message(why));
  LogError("engine_memory_lost",
           {{"generation", weights_->generation().value()}, {"reason", Message(reason)}});
  parts_.registry.EndAll(reason);
  parts_.board.SetReadiness(false, std::string(Message(reason)));
}

void LiveEngine::Forget() {
  live_.Forget();
  parts_.on_forget();
  weights_.reset();
  engine_.reset();
  paused_for_drift_ = false;
  before_.reset();
  drift_told_.clear();
  released_ = false;
  parts_.board.SetPaused(false);
  Show();
}

bool LiveEngine::IsCurrent() const {
  const std::optional<AttachedEngine> now = parts_.registry.Engine();
  return now.has_value() && weights_ != nullptr && now->generation == weights_->generation();
}

LeaseControl LiveEngine::Control() const {
  DWS_CHECK(engine_.has_value());
  return {engine_->leases, parts_.clock, parts_.liveness};
}

bool LiveEngine::MayCommit(const VersionAt& target) const {
  DWS_CHECK(engine_.has_value());
  return std::ranges::all_of(engine_->leases, [&](const auto& lease) {
    return lease->MayCommit({.live = live_.at, .target = target});
  });
}

bool LiveEngine::Asks() const {
  DWS_CHECK(engine_.has_value());
  return std::ranges::any_of(engine_->leases, [](const auto& lease) { return lease->asks(); });
}

bool LiveEngine::AllRun() const {
  DWS_CHECK(engine_.has_value());
  return std::ranges::all_of(engine_->leases, [](const auto& lease) {
    return lease->state() == EngineLease::State::kRunning;
  });
}

// A commit group may choose another version, depending on what its other members have.
bool LiveEngine::MayWriteNow() const {
  DWS_CHECK(engine_.has_value());
  const auto is_paused = [](const auto& lease) {
    return lease->state() == EngineLease::State::kPaused;
  };
  return options_.runs_when_proved && !live_.at.has_value() && !Asks() &&
         std::ranges::all_of(engine_->leases, is_paused);
}

std::string LiveEngine::Unproved() const {
  return AllRun() ? "the engine runs with weights of its own" : "the engine is paused";
}

void LiveEngine::Show() const {
  parts_.board.ShowLive(live_, live_.proved() && runs());
  if (parts_.served == nullptr) return;
  if (weights_ == nullptr || !live_.proved()) return parts_.served->Withdraw();
  parts_.served->Offer(weights_, *live_.at);
}

Status LiveEngine::CheckNumber(const SyncTarget& target) {
  for (const TrainerRank rank : RanksPublishedAgain(live_, target)) {
    LiveState::Rank& known = live_.ranks[rank.value()];
    Result<Description> described = parts_.preparer.Describe(target, rank, known.slices.size());
    if (!described.ok()) {
      parts_.board.SetReadiness(
          false, fmt::format("version {} was published again with other weights, and cannot "
                             "be compared: {}",
                             target.version.value(), Message(described.status())));
      return described.status();
    }
    if (described->state_token == known.state_token) continue;  // published again since
    known.published = std::move(described->slices);
    known.state_token = described->state_token;
    parts_.on_renumbered();
    live_.drifted = true;
    const size_t slices = SlicesThatDiffer(known.slices, known.published).size();
    CountDrift(&MismatchCounts::renumbered, slices);
    LogError(
        "version_number_used_twice",
        {{"version", target.version.value()},
         {"rank", rank.value()},
         {"slices", slices},
         {"reason",
          "an older copy of the sender's state, or a second sender: start the trainer with a new "
          "stream"}});
    Show();
    parts_.board.SetReadiness(false, DriftReason() + ": it is being repaired");
  }
  return OkStatus();
}

void LiveEngine::CountDrift(uint64_t MismatchCounts::*source, uint64_t slices) {
  ++drifts_;
  parts_.board.CountDrift(source, slices);
}

std::string LiveEngine::DriftReason() const {
  DWS_CHECK(live_.at.has_value());
  uint64_t count = 0;
  std::string first;
  for (uint32_t r = 0; r < live_.ranks.size(); ++r) {
    const LiveState::Rank& rank = live_.ranks[r];
    for (uint32_t s = 0; s < rank.slices.size(); ++s) {
      if (rank.slices[s].Matches(rank.published[s])) continue;
      if (count++ == 0) first = weights_->layouts().rank(TrainerRank(r)).tensor(RankSlice(s)).name;
    }
  }
  return fmt::format("live memory is not version {}: {} slices differ, the first of tensor '{}'",
                     live_.at->version.value(), count, first);
}

void LiveEngine::PauseForDrift(const Status& cause) {
  std::string why = "no repair while drained";
  if (!parts_.board.drained()) {
    why = cause.ok() ? "its repair is staged" : "not repaired yet: " + std::string(Message(cause));
  }
  std::string does = "runs on until it asks for a version";
  Status paused = UnavailableError("it {}", does);
  if (MayCommit(*live_.at)) {
    paused = Pause();
    does = paused.ok() ? "is paused" : "does not answer a pause";
  }
  paused_for_drift_ = paused.ok();
  if (paused.ok()) OnPaused();
  const std::string told = paused.ok() ? why : ToString(paused);
  // An engine that runs on is asked again in every round.
  if (std::exchange(drift_told_, told) != told) {
    LogError(
        "drift_not_repaired",
        {{"version", live_.at->version.value()}, {"engine_paused", paused.ok()}, {"reason", told}});
  }
  parts_.board.SetReadiness(false, fmt::format("the engine {}: {}; {}", does, DriftReason(), why));
}

void LiveEngine::OnPaused() {
  released_ = false;
  parts_.board.SetPaused(true);
}

void LiveEngine::OnResumed() {
  released_ = true;
  paused_for_drift_ = false;
  drift_told_.clear();
  parts_.board.SetPaused(false);
  Show();
}

}  // namespace dws
