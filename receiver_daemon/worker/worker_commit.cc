// Versions: how the worker gets its engine's memory from one to another, and proves which it has.
#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "receiver_daemon/engine/lease_control.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {

Status Worker::AdoptCommitted(const SyncTarget& target) {
  std::optional<VersionAt> intended;
  std::optional<VersionAt> committed;
  const ReceiverLedgerState& ledger = parts_.ledger.state();
  if (const auto& open = ledger.open_intent()) intended = VersionAt{open->stream, open->target};
  if (const auto& last = ledger.committed()) committed = VersionAt{last->stream, last->version};
  const std::optional<VersionAt> version = Adoptable(intended, committed, target.at());
  if (!version.has_value()) return OkStatus();
  const std::optional<SyncTarget> last = parts_.subscription.TargetAt(version->version);
  if (!last.has_value() || !weights_->layouts().Fits(*last)) return OkStatus();
  const TimePoint begin = parts_.clock.Now();
  const Result<std::optional<Prepared>> prepared = preparer_.PrepareAdoption(live_, *last);
  if (!prepared.ok()) {
    // It is a short cut, the target is what counts.
    return absl::IsAborted(prepared.status()) ? OkStatus() : prepared.status();
  }
  return prepared->has_value() ? Commit(**prepared, begin) : OkStatus();
}

// A number of one stream that was used twice: memory has a version of that number, and not the one
// that is published under it now. What is published counts: the rest is drift, and repaired as
// such.
Status Worker::CheckNumber(const SyncTarget& target) {
  for (const TrainerRank rank : RanksPublishedAgain(live_, target)) {
    LiveState::Rank& known = live_.ranks[rank.value()];
    Result<Description> described = preparer_.Describe(target, rank, known.slices.size());
    if (!described.ok()) {
      SetReadiness(false,
                   fmt::format("version {} was published again with other weights, and cannot "
                               "be compared: {}",
                               target.version.value(), Message(described.status())));
      return described.status();
    }
    if (described->state_token == known.state_token) continue;  // published again since
    known.published = std::move(described->slices);
    known.state_token = described->state_token;
    live_.drifted = true;
    ++drifts_;
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
    PublishLive();
    SetReadiness(false, DriftReason() + ": it is being repaired");
  }
  return OkStatus();
}

Status Worker::Advance(const SyncTarget& target, Way way) {
  const TimePoint begin = parts_.clock.Now();
  SetStage("fetching", target.version);
  // Of an engine that has gone, memory is let go at once.
  Result<Prepared> prepared =
      preparer_.Prepare(*weights_, live_, target, way, [this] { return EngineIsCurrent(); });
  Status status = prepared.status();
  if (status.ok()) {
    SetStage("committing", target.version);
    SetStaging(prepared->staging_bytes());
    status = Commit(*prepared, begin);
  }
  SetStage("idle", std::nullopt);
  PublishLive();
  SetTrouble(status.ok() ? ""
                         : fmt::format("version {} cannot be reached: {}", target.version.value(),
                                       Message(status)));
  if (live_.proved()) {
    SetReadiness(true, "");
  } else if (!live_.drifted) {
    SetReadiness(false, fmt::format("the engine is paused: version {}: {}", target.version.value(),
                                    Message(status)));
  }
  return status;
}

Status Worker::Commit(const Prepared& prepared, TimePoint begin) {
  if (parts_.group != nullptr) return CommitForGroup(prepared, begin);
  const bool first = !live_.at.has_value();
  const TimePoint staged = parts_.clock.Now();
  CommitReport report = ReportOf(prepared);
  DWS_ASSIGN_OR_RETURN(const Duration paused,
                       RunPipeline(prepared, CommitPipeline::Release::kAtOnce));
  // What drift had paused before did not wait for this commit alone.
  const Duration pause = drift_paused_ ? Duration::zero() : paused;
  SetPaused(false);
  drift_paused_ = false;
  PublishLive();
  pipeline_.Acknowledge(prepared, pause, staged - begin);
  report.pause = pause;
  report.commit = parts_.clock.Now() - staged;
  PublishCommit(report, first ? prepared.full_slices() : 0);
  LogCommitted(report, parts_.clock.Now() - begin, first);
  return OkStatus();
}

bool Worker::EngineIsCurrent() const {
  const std::optional<AttachedEngine> now = parts_.registry.Engine();
  return now.has_value() && now->generation == weights_->generation();
}

Result<Duration> Worker::RunPipeline(const Prepared& prepared, CommitPipeline::Release release) {
  LeaseControl control(engine_->leases, parts_.clock, parts_.pulse);
  const CommitPipeline::Engine engine{
      .control = control, .weights = *weights_, .is_current = [this] { return EngineIsCurrent(); }};
  Result<Duration> paused = pipeline_.Commit(engine, live_, prepared, release);
  if (paused.ok()) return paused;
  if (!live_.known()) SetPaused(true);  // in the middle of writing
  if (absl::IsDataLoss(paused.status())) CountWriteMismatch();
  return paused;
}

CommitReport Worker::ReportOf(const Prepared& prepared) const {
  CommitReport report{.version = prepared.target.version, .repaired = prepared.repairs()};
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    const PreparedRank& rank = prepared.ranks[r];
    const RankLayout& layout = weights_->layouts().rank(TrainerRank(r));
    report.delta_bytes += rank.fetched_bytes - rank.full_bytes();
    report.full_bytes += rank.full_bytes();
    report.nnz += rank.nnz;
    report.elements += layout.element_count();
    report.model_bytes += layout.size_bytes();
    report.fetch = std::max(report.fetch, rank.fetch);
    report.stage = std::max(report.stage, rank.stage);
  }
  return report;
}

}  // namespace dws
