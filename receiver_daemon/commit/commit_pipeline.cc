// 1. everything is verified and staged, and the senders know
// 2. intent, durably
// 3. pause; prove that the engine is still the one that was staged for
// 4. scatter what is staged; apply in place what was too large, and full tensors; read back what
// was not staged
// 5. derived tensors
// 6. resume
// 7. record; then acknowledge
// A crash between 2 and 7 leaves an open intent: the next attach reads all digests before the
// engine runs. The record comes after the resume because it says nothing that attaching would not
// find out, and a disk is slow.
// In a commit group 6 is the leader's.
#include "receiver_daemon/commit/commit_pipeline.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/failpoint.h"
#include "common/base/log/log.h"

namespace dws {
namespace {

// What memory holds once `prepared` is written.
LiveState Reached(const EngineWeights& weights, const Prepared& prepared) {
  LiveState live;
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    LiveState::Rank rank{.slices = {},
                         .published = prepared.ranks[r].published,
                         .state_token = prepared.ranks[r].state_token};
    for (uint32_t s = 0; s < rank.published.size(); ++s) {
      const bool held = weights.Holds(TrainerRank(r), RankSlice(s));
      rank.slices.push_back({.kind = held ? SliceState::Kind::kHeld : SliceState::Kind::kNotHeld,
                             .digest = held ? rank.published[s] : Digest{}});
    }
    live.ranks.push_back(std::move(rank));
  }
  live.at = VersionAt{.stream = prepared.target.stream, .version = prepared.target.version};
  return live;
}

// Notes when stages end that follow one another.
class StageWatch {
 public:
  StageWatch(const Clock& clock, VersionTimes& times)
      : clock_(clock), times_(times), since_(clock.Now()) {}
  // Ends `stage` now; returns the time.
  TimePoint End(VersionStage stage) {
    const TimePoint now = clock_.Now();
    times_[stage] += now - std::exchange(since_, now);
    return now;
  }

 private:
  const Clock& clock_;
  VersionTimes& times_;
  TimePoint since_;
};

// Returns the contents of memory after the version is written.
TensorContents ContentsOf(const LayoutSet& layouts, const LiveState& reached) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;  // odd: no bit is lost
  TensorContents contents;
  for (uint32_t r = 0; r < reached.ranks.size(); ++r) {
    const std::vector<Digest>& published = reached.ranks[r].published;
    for (uint32_t s = 0; s < published.size(); ++s) {
      uint64_t& content = contents[layouts.rank(TrainerRank(r)).tensor(RankSlice(s)).name];
      content = content * kFactor + published[s].lane0;
      content = content * kFactor + published[s].lane1;
    }
  }
  return contents;
}

}  // namespace

EngineVersion VersionOf(const LiveState& live) {
  std::vector<Digest> tokens;
  for (const LiveState::Rank& rank : live.ranks) tokens.push_back(rank.state_token);
  return {
      .stream = live.at->stream, .version = live.at->version, .state_token = EngineToken(tokens)};
}

Result<CommitPipeline::Done> CommitPipeline::Commit(const Engine& engine, LiveState& live,
                                                    const Prepared& prepared, Release release) {
  const SyncTarget& target = prepared.target;
  LiveState reached = Reached(engine.weights, prepared);
  // A repaired slice may have been damaged when an engine derived tensors from it.
  const TensorContents contents =
      prepared.repairs() ? TensorContents() : ContentsOf(engine.weights.layouts(), reached);
  const EngineVersion version = VersionOf(reached);
  DWS_FAILPOINT("receiver.commit.after_staged");
  Attempt attempt{.engine = engine,
                  .live = live,
                  .target = target,
                  .release = release,
                  .state = CommitState(engine.weights.generation())};
  CommitState& commit = attempt.state;
  Done done;
  StageWatch watch(clock_, done.times);
  DWS_RETURN_IF_ERROR(Intend(engine.weights, live, target));  // 2
  commit.OnIntentRecorded();
  DWS_KILLPOINT("receiver.commit.after_intent");
  ScatterList scatter;
  for (const PreparedRank& rank : prepared.ranks) AddToList(rank.staged, scatter);

  const bool was_running = live.at.has_value();
  const TimePoint asked = watch.End(VersionStage::kIntent);
  Status paused = engine.control.Pause(pause_timeout_);  // 3
  // While the last rank's forward pass ran on, the engine was not paused.
  const TimePoint pause_begin =
      std::max<TimePoint>(asked, clock_.Now() - engine.control.StoppedFor());
  static_cast<void>(watch.End(VersionStage::kGate));
  if (paused.ok()) {
    paused = commit.OnPaused(engine.is_current() ? std::optional(engine.weights.generation())
                                                 : std::nullopt);
  }
  if (!paused.ok()) return Fail(attempt, paused);
  DWS_KILLPOINT("receiver.commit.after_pause");

  commit.OnWriteBegin();
  engine.control.OnWriteBegin(contents);
  const Duration uploaded = engine.weights.UploadTime();
  Status written = Write(engine.weights, prepared, scatter);  // 4
  static_cast<void>(watch.End(VersionStage::kWrite));
  if (written.ok()) written = CheckWritten(engine.weights, prepared);
  static_cast<void>(watch.End(VersionStage::kProve));
  DWS_KILLPOINT("receiver.commit.after_scatter");
  if (written.ok()) written = engine.control.PostCommit(target.version, pause_timeout_);  // 5
  if (!written.ok()) return Fail(attempt, written);
  static_cast<void>(watch.End(VersionStage::kRebuild));
  done.times[VersionStage::kWrite] =
      VersionTimes::Split(done.times[VersionStage::kWrite], engine.weights.UploadTime() - uploaded,
                          done.times[VersionStage::kUpload]);
  commit.OnWritten();
  if (release == Release::kAtOnce) {  // 6
    const Status resumed = Annotate(engine.control.Resume(version), "resuming the engine");
    if (!resumed.ok()) return Fail(attempt, resumed);
  }
  commit.OnReleased();
  const TimePoint released = watch.End(VersionStage::kResume);
  if (was_running) done.pause = released - pause_begin;
  live = std::move(reached);
  DWS_KILLPOINT("receiver.commit.after_resume");

  Record(target);  // 7
  static_cast<void>(watch.End(VersionStage::kRecord));
  DWS_KILLPOINT("receiver.commit.after_record");
  return done;
}

void CommitPipeline::Acknowledge(const Prepared& prepared, Duration pause, Duration stage_time) {
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    senders_.Committed(prepared.target, TrainerRank(r),
                       {.state_token = prepared.ranks[r].state_token,
                        .pause_seconds = ToSeconds(pause),
                        .stage_seconds = ToSeconds(stage_time),
                        .fetched_bytes = prepared.ranks[r].fetched_bytes});
  }
  DWS_KILLPOINT("receiver.commit.after_ack");
}

Status CommitPipeline::Intend(const EngineWeights& weights, const LiveState& live,
                              const SyncTarget& target) {
  return Annotate(ledger_.Append(CommitIntent{.stream = target.stream,
                                              .base = VersionIn(live.at, target.stream),
                                              .target = target.version,
                                              .generation = weights.generation()}),
                  "recording the intent");
}

Status CommitPipeline::Fail(Attempt& attempt, const Status& cause) {
  switch (attempt.state.OnError()) {
    case CommitState::AfterError::kNothing:
      return cause;
    case CommitState::AfterError::kAbandonAndResume: {
      const Status resumed = Abandon(attempt);
      if (resumed.ok()) return Annotate(cause, "nothing was written");
      // An engine that may be paused runs again only after another commit.
      attempt.live.Forget();
      return MakeStatus(cause.code(),
                        fmt::format("nothing was written: {}; resuming the engine: {}",
                                    Message(cause), Message(resumed)));
    }
    case CommitState::AfterError::kStayPaused:
      attempt.live.Forget();
      return cause;
  }
  return cause;
}

Status CommitPipeline::Abandon(const Attempt& attempt) {
  const SyncTarget& target = attempt.target;
  const Status status =
      ledger_.Append(CommitAbandoned{.stream = target.stream, .target = target.version});
  if (!status.ok())
    LogError("ledger_append_failed", {{"record", "abandoned"}, {"reason", Message(status)}});
  // The memory is unchanged. Ranks that had paused go on; a rank whose answer is late reads its
  // Resume after it has answered.
  if (attempt.release == Release::kAtOnce && attempt.live.proved()) {
    return attempt.engine.control.Resume(VersionOf(attempt.live));
  }
  return OkStatus();
}

Status CommitPipeline::Write(const EngineWeights& weights, const Prepared& prepared,
                             const ScatterList& scatter) {
  DWS_RETURN_IF_ERROR(Scatter(weights, scatter, pool_));
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    const PreparedRank& rank = prepared.ranks[r];
    if (rank.delta_spool.has_value()) {
      DWS_RETURN_IF_ERROR(
          ApplyFramesInPlace(weights, TrainerRank(r), rank.delta_frames, *rank.delta_spool, pool_));
    }
    if (rank.full.has_value()) {
      DWS_RETURN_IF_ERROR(
          ApplyFramesInPlace(weights, TrainerRank(r), rank.full->frames, rank.full->spool, pool_));
    }
  }
  return OkStatus();
}

Status CommitPipeline::CheckWritten(const EngineWeights& weights, const Prepared& prepared) {
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    const PreparedRank& rank = prepared.ranks[r];
    for (const std::vector<RankSlice>* slices : {&rank.delta_slices, &rank.full_slices}) {
      if (slices->empty()) continue;
      DWS_ASSIGN_OR_RETURN(const std::vector<SliceState> states,
                           weights.ComputeStates(TrainerRank(r), *slices, Pace::kPaused, pool_));
      for (size_t i = 0; i < states.size(); ++i) {
        const Digest& expected = rank.published[(*slices)[i].value()];
        if (states[i].Matches(expected)) continue;
        return DataLossError(
            "tensor '{}' of trainer rank {} has digest {} after it was written, expected {}",
            weights.layouts().rank(TrainerRank(r)).tensor((*slices)[i]).name, r,
            ToString(states[i].digest), ToString(expected));
      }
    }
  }
  return OkStatus();
}

void CommitPipeline::Record(const SyncTarget& target) {
  const Status status =
      ledger_.Append(VersionCommitted{.stream = target.stream, .version = target.version});
  // Memory and engine are at the target all the same; an open intent costs a reading of digests at
  // most.
  if (!status.ok())
    LogError("ledger_append_failed", {{"record", "committed"}, {"reason", Message(status)}});
}

}  // namespace dws
