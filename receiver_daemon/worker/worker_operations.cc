// What operators ask of the worker: Verify and Resync; the scrub; and what follows when live memory
// is not what it should be. On the worker's thread like everything else that reads or writes live
// memory.
//
// Drift, protocol.md §5:
// 1. a slice is not what was published for the version the engine has: counted, logged, not ready
// 2. the next round repairs it on the way of every commit: fetch, pause, write, prove, resume
// 3. what that round does not repair is repaired later, and the engine is paused until then
#include <algorithm>
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/model/limits.h"
#include "receiver_daemon/engine/lease_control.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {

void Worker::TakeVerifies() {
  for (OperatorTaskPtr& task : parts_.desk.TakeVerifies()) {
    described_ = {};  // a sender that was away may be back
    if (live_.at.has_value()) {
      verifies_.push_back({.task = std::move(task), .reading = Verification(weights_)});
      continue;
    }
    task->End(FailedPreconditionError("there is no version to compare live memory with: {}",
                                      status().reason));
  }
  std::erase_if(verifies_, [this](const ActiveVerify& active) {
    if (active.task->cancelled()) return true;
    if (weights_.get() == &active.reading.weights()) return false;
    active.task->End(AbortedError(
        "the engine has gone or attached anew; attaching reads all digests too: verify again"));
    return true;
  });
}

void Worker::VerifyNext() {
  TakeVerifies();
  // Without a version memory is being repaired; it will have one again.
  if (verifies_.empty() || !live_.at.has_value()) {
    busy_ = false;
    return;
  }
  SetStage("verifying", std::nullopt);
  for (ActiveVerify& active : verifies_) VerifyBatch(active);
  std::erase_if(verifies_, [](const ActiveVerify& active) { return active.reading.done(); });
  if (verifies_.empty()) SetStage("idle", std::nullopt);
  busy_ = !verifies_.empty();
}

// Not while an operator's verification reads the same. The digests kept since the commit are
// compared: no sender is asked, none needs to be there.
void Worker::ScrubNext() {
  if (!verifies_.empty() || !live_.at.has_value()) return;
  const TimePoint now = parts_.clock.Now();
  if (scrub_.UntilDue(now) != Duration::zero()) return;
  if (!scrub_.on(weights_)) {
    const bool first = !scrub_.complete_since().has_value();
    scrub_.Begin(weights_, now);
    if (first && scrub_.slow()) {
      LogWarning("scrub_slower_than_asked",
                 {{"asked_seconds", ToSeconds(scrub_.options().pass)},
                  {"expected_seconds", ToSeconds(scrub_.pass_expected())},
                  {"reason", "--scrub-rate caps it: drift may be found as much later"}});
    }
  }
  const SliceBatch batch = scrub_.Next(now);
  OperatorTask unseen(/*full=*/false);
  const Status read = CompareBatch(batch, live_.ranks[batch.rank.value()].published, unseen,
                                   &MismatchCounts::scrub);
  if (!read.ok()) return LoseEngine(read);
  const bool pass_done = scrub_.done();
  if (pass_done) {
    CountScrub(batch.bytes, true);
    scrub_.EndPass(now);
  }
  CountScrub(pass_done ? 0 : batch.bytes, false);
}

bool Worker::LookForDrift() {
  const bool had_drifted = live_.drifted;
  VerifyNext();
  ScrubNext();
  if (!live_.drifted || had_drifted) return false;
  PublishLive();
  SetReadiness(false, DriftReason() + ": it is being repaired");
  busy_ = true;
  return true;
}

void Worker::VerifyBatch(ActiveVerify& active) {
  Verification& reading = active.reading;
  if (!reading.done()) {
    bool described = false;
    const SliceBatch batch = reading.Next(verify_batch_bytes_);
    const std::vector<Digest>& expected = Published(batch.rank, described);
    const Status read = CompareBatch(batch, expected, *active.task, &MismatchCounts::verify);
    if (!read.ok()) {
      active.task->End(read);
      return LoseEngine(read);
    }
    active.described = active.described && described;
  }
  SetStageBytes(reading.done_bytes(), reading.total_bytes());
  const bool done = reading.done();
  active.task->Update([&](TaskProgress& progress) {
    progress.done_bytes = reading.done_bytes();
    progress.total_bytes = reading.total_bytes();
    progress.version = live_.at->version;
    progress.step = active.described
                        ? "compares live memory with what the senders describe"
                        : "compares live memory with the digests kept since the commit: no sender "
                          "describes this version now";
    if (done && progress.mismatches > 0) {
      progress.step +=
          fmt::format("; {} slices differ and are being repaired", progress.mismatches);
    }
  });
  DWS_KILLPOINT("receiver.verify.after_batch");
  if (done) active.task->End(OkStatus());
}

Status Worker::CompareBatch(const SliceBatch& batch, const std::vector<Digest>& expected,
                            OperatorTask& task, uint64_t MismatchCounts::*source) {
  DWS_ASSIGN_OR_RETURN(
      const std::vector<SliceState> found,
      weights_->ComputeStates(batch.rank, batch.slices, Pace::kBackground, parts_.pool));
  const RankLayout& layout = weights_->layouts().rank(batch.rank);
  for (size_t i = 0; i < found.size(); ++i) {
    const RankSlice slice = batch.slices[i];
    SliceState& known = live_.ranks[batch.rank.value()].slices[slice.value()];
    // What matches the digests of the commit was not known to differ from what is described now.
    const bool news = found[i] != known ||
                      found[i].Matches(live_.ranks[batch.rank.value()].published[slice.value()]);
    known = found[i];
    if (found[i].Matches(expected[slice.value()])) continue;
    live_.drifted = true;
    SliceMismatch mismatch{.tensor = layout.tensor(slice).name,
                           .rank = batch.rank,
                           .slice = slice,
                           .version = live_.at->version,
                           .expected = expected[slice.value()],
                           .found = std::nullopt};
    if (found[i].kind == SliceState::Kind::kHeld) mismatch.found = found[i].digest;
    if (news) {
      ++drifts_;
      CountDrift(source);
      LogError("drift_found", {{"version", mismatch.version.value()},
                               {"tensor", mismatch.tensor},
                               {"rank", batch.rank.value()},
                               {"slice", slice.value()},
                               {"expected", ToString(mismatch.expected)},
                               {"found", mismatch.found.has_value() ? ToString(*mismatch.found)
                                                                    : "copies differ"}});
    }
    task.Update([&mismatch](TaskProgress& progress) {
      ++progress.mismatches;
      if (progress.mismatched.size() < limits::kMismatchesNamedMax) {
        progress.mismatched.push_back(std::move(mismatch));
      }
    });
  }
  return OkStatus();
}

const std::vector<Digest>& Worker::Published(TrainerRank rank, bool& described) {
  if (described_.at != live_.at) described_ = {.at = live_.at, .ranks = {}};
  const std::vector<Digest>& kept = live_.ranks[rank.value()].published;
  auto found = described_.ranks.find(rank);
  if (found == described_.ranks.end()) {
    std::optional<std::vector<Digest>> digests;
    const std::optional<SyncTarget> target = parts_.subscription.TargetAt(live_.at->version);
    if (target.has_value() && target->stream == live_.at->stream &&
        weights_->layouts().Fits(*target)) {
      Result<Description> description = preparer_.Describe(*target, rank, kept.size());
      if (description.ok()) {
        digests = std::move(description->slices);
      } else {
        LogDebug("not_described", {{"version", live_.at->version.value()},
                                   {"rank", rank.value()},
                                   {"reason", Message(description.status())}});
      }
    }
    found = described_.ranks.emplace(rank, std::move(digests)).first;
  }
  described = found->second.has_value();
  return described ? *found->second : kept;
}

std::string Worker::DriftReason() const {
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

void Worker::PauseForDrift(const Status& cause) {
  const std::string why =
      drained_ ? "no repair while drained" : "not repaired yet: " + std::string(Message(cause));
  LeaseControl control(engine_->leases, parts_.clock, parts_.pulse);
  const Status paused = control.Pause(pause_timeout_);
  drift_paused_ = paused.ok();
  if (paused.ok()) SetPaused(true);
  LogError("drift_not_repaired", {{"version", live_.at->version.value()},
                                  {"engine_paused", paused.ok()},
                                  {"reason", paused.ok() ? why : ToString(paused)}});
  SetReadiness(false, fmt::format("the engine {}: {}; {}",
                                  paused.ok() ? "is paused" : "does not answer a pause",
                                  DriftReason(), why));
}

Status Worker::ReadAll(OperatorTask& task) {
  Verification reading(weights_);
  while (!reading.done()) {
    if (stopping_.load()) return CancelledError("the receiver is stopping");
    const SliceBatch batch = reading.Next(verify_batch_bytes_);
    if (live_.at.has_value()) {
      DWS_RETURN_IF_ERROR(CompareBatch(batch, live_.ranks[batch.rank.value()].published, task,
                                       &MismatchCounts::verify));
    } else {
      DWS_ASSIGN_OR_RETURN(
          const std::vector<SliceState> found,
          weights_->ComputeStates(batch.rank, batch.slices, Pace::kPaused, parts_.pool));
      for (size_t i = 0; i < found.size(); ++i) {
        live_.ranks[batch.rank.value()].slices[batch.slices[i].value()] = found[i];
      }
    }
    SetStageBytes(reading.done_bytes(), reading.total_bytes());
    task.Update([&reading](TaskProgress& progress) {
      progress.step = "recomputes the digests of live memory";
      progress.done_bytes = reading.done_bytes();
      progress.total_bytes = reading.total_bytes();
    });
    DWS_KILLPOINT("receiver.resync.after_batch");
  }
  return OkStatus();
}

Status Worker::Resync(OperatorTask& task, const std::optional<SyncTarget>& target) {
  if (resync_read_ != weights_) {
    SetStage("verifying", std::nullopt);
    const Status read = ReadAll(task);
    SetStage("idle", std::nullopt);
    DWS_RETURN_IF_ERROR(read);
    resync_read_ = weights_;
    if (live_.drifted) SetReadiness(false, DriftReason() + ": it is being repaired");
    PublishLive();
  }
  Status status = OkStatus();
  if (target.has_value()) {
    task.Update([&](TaskProgress& progress) {
      progress.step = fmt::format("brings the engine to version {} by {}", target->version.value(),
                                  task.full() ? "full tensors" : "description and full tensors");
      progress.done_bytes = progress.total_bytes = 0;
    });
    status = Advance(*target, task.full() ? Way::kFull : Way::kDescription);
  } else {
    status = UnavailableError("{}", parts_.subscription.MissingTarget());
  }
  task.Update([&](TaskProgress& progress) {
    if (status.ok()) {
      progress.version = live_.at->version;
      progress.done_bytes = progress.total_bytes = Verification(weights_).total_bytes();
    }
    progress.step = status.ok()
                        ? fmt::format("the engine has version {}", live_.at->version.value())
                        : "tries again: " + std::string(Message(status));
  });
  if (!status.ok()) return status;
  resync_read_.reset();
  parts_.desk.EndResync(OkStatus());
  return OkStatus();
}

}  // namespace dws
