#include "receiver_daemon/worker/drift_watch.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"

namespace dws {

void DriftWatch::TakeVerifies() {
  for (OperatorTaskPtr& task : parts_.requests.TakeVerifies()) {
    described_ = {};  // a sender that was away may be back
    if (engine_.live().at.has_value()) {
      verifies_.push_back({.task = std::move(task), .reading = Verification(engine_.weights())});
      continue;
    }
    task->End(FailedPreconditionError("there is no version to compare live memory with: {}",
                                      board_.status().reason));
  }
  std::erase_if(verifies_, [this](const ActiveVerify& active) {
    if (active.task->cancelled()) return true;
    if (engine_.weights().get() == &active.reading.weights()) return false;
    active.task->End(
        AbortedError("the engine has disconnected or attached again; attaching reads all digests "
                     "too: verify again"));
    return true;
  });
}

void DriftWatch::VerifyNext() {
  TakeVerifies();
  // Without a version memory is being repaired; it will have one again. Between the write of a
  // commit group and its release, reading would prolong the pause of all members.
  const bool waits = !engine_.live().at.has_value() || (engine_.live().proved() && !engine_.runs());
  if (!waits) {
    for (ActiveVerify& active : verifies_) VerifyBatch(active);
    std::erase_if(verifies_, [](const ActiveVerify& active) { return active.reading.done(); });
  }
  if (verifies_.empty()) board_.EndReading();
  busy_ = !waits && !verifies_.empty();
}

// The scrub does not run while an operator's verification reads the same memory, while the engine
// is paused, or if the engine holds nothing.
bool DriftWatch::ScrubApplies() const {
  return verifies_.empty() && engine_.runs() && !engine_.weights()->empty();
}

std::optional<Duration> DriftWatch::UntilDue() const {
  return ScrubApplies() ? scrub_.UntilDue(parts_.clock.Now()) : std::nullopt;
}

// Compares the digests that were kept since the commit: no sender is asked, so none need be
// connected.
void DriftWatch::ScrubNext() {
  if (!ScrubApplies()) return;
  const TimePoint now = parts_.clock.Now();
  if (scrub_.UntilDue(now) != Duration::zero()) return;
  if (!scrub_.on(engine_.weights())) {
    const bool first = !scrub_.complete_since().has_value();
    scrub_.Begin(engine_.weights(), now);
    if (first && scrub_.slow()) {
      LogWarning("scrub_slower_than_asked",
                 {{"asked_seconds", ToSeconds(scrub_.options().pass)},
                  {"expected_seconds", ToSeconds(scrub_.pass_expected())},
                  {"reason", "--scrub-rate caps it: drift may be found as much later"}});
    }
  }
  const SliceBatch batch = scrub_.Next(now);
  OperatorTask unseen(/*full=*/false);
  const Status read = CompareBatch(batch, engine_.live().ranks[batch.rank.value()].published,
                                   unseen, &MismatchCounts::scrub);
  if (!read.ok()) return engine_.Lose(read);
  const bool pass_done = scrub_.done();
  if (pass_done) {
    board_.CountScrub(scrub_, batch.bytes, true);
    scrub_.EndPass(now);
  }
  board_.CountScrub(scrub_, pass_done ? 0 : batch.bytes, false);
}

bool DriftWatch::Look() {
  const bool had_drifted = engine_.live().drifted;
  VerifyNext();
  ScrubNext();
  if (!engine_.live().drifted || had_drifted) return false;
  engine_.Show();
  board_.SetReadiness(false, engine_.DriftReason() + ": it is being repaired");
  busy_ = true;
  return true;
}

void DriftWatch::VerifyBatch(ActiveVerify& active) {
  Verification& reading = active.reading;
  if (!reading.done()) {
    bool described = false;
    const SliceBatch batch = reading.Next(verify_batch_bytes_);
    const std::vector<Digest>& expected = Published(batch.rank, described);
    const Status read = CompareBatch(batch, expected, *active.task, &MismatchCounts::verify);
    if (!read.ok()) {
      active.task->End(read);
      return engine_.Lose(read);
    }
    active.described = active.described && described;
  }
  board_.ShowReading(reading.done_bytes(), reading.total_bytes());
  const bool done = reading.done();
  active.task->Update([&](TaskProgress& progress) {
    progress.done_bytes = reading.done_bytes();
    progress.total_bytes = reading.total_bytes();
    progress.version = engine_.live().at->version;
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

Status DriftWatch::CompareBatch(const SliceBatch& batch, const std::vector<Digest>& expected,
                                OperatorTask& task, uint64_t MismatchCounts::*source) {
  DWS_ASSIGN_OR_RETURN(
      const std::vector<SliceState> found,
      engine_.weights()->ComputeStates(batch.rank, batch.slices, Pace::kBackground, parts_.pool));
  const RankLayout& layout = engine_.weights()->layouts().rank(batch.rank);
  for (size_t i = 0; i < found.size(); ++i) {
    const RankSlice slice = batch.slices[i];
    SliceState& known = engine_.mutable_live().ranks[batch.rank.value()].slices[slice.value()];
    // A slice that matches the digests of the commit was not known to differ from the description
    // until now.
    const bool news =
        found[i] != known ||
        found[i].Matches(engine_.live().ranks[batch.rank.value()].published[slice.value()]);
    known = found[i];
    if (found[i].Matches(expected[slice.value()])) continue;
    engine_.mutable_live().drifted = true;
    SliceMismatch mismatch{.tensor = layout.tensor(slice).name,
                           .rank = batch.rank,
                           .slice = slice,
                           .version = engine_.live().at->version,
                           .expected = expected[slice.value()],
                           .found = std::nullopt};
    if (found[i].kind == SliceState::Kind::kHeld) mismatch.found = found[i].digest;
    if (news) {
      engine_.CountDrift(source);
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

const std::vector<Digest>& DriftWatch::Published(TrainerRank rank, bool& described) {
  if (described_.at != engine_.live().at) described_ = {.at = engine_.live().at, .ranks = {}};
  const std::vector<Digest>& kept = engine_.live().ranks[rank.value()].published;
  auto found = described_.ranks.find(rank);
  if (found == described_.ranks.end()) {
    std::optional<std::vector<Digest>> digests;
    const std::optional<SyncTarget> target =
        parts_.subscription.TargetAt(engine_.live().at->version);
    if (target.has_value() && target->stream == engine_.live().at->stream &&
        engine_.weights()->layouts().Fits(*target)) {
      Result<Description> description = parts_.preparer.Describe(*target, rank, kept.size());
      if (description.ok()) {
        digests = std::move(description->slices);
      } else {
        LogDebug("not_described", {{"version", engine_.live().at->version.value()},
                                   {"rank", rank.value()},
                                   {"reason", Message(description.status())}});
      }
    }
    found = described_.ranks.emplace(rank, std::move(digests)).first;
  }
  described = found->second.has_value();
  return described ? *found->second : kept;
}

Status DriftWatch::ReadAll(OperatorTask& task) {
  Verification reading(engine_.weights());
  while (!reading.done()) {
    if (parts_.stopping.load()) return CancelledError("the receiver is stopping");
    const SliceBatch batch = reading.Next(verify_batch_bytes_);
    if (engine_.live().at.has_value()) {
      DWS_RETURN_IF_ERROR(CompareBatch(batch, engine_.live().ranks[batch.rank.value()].published,
                                       task, &MismatchCounts::verify));
    } else {
      DWS_ASSIGN_OR_RETURN(
          const std::vector<SliceState> found,
          engine_.weights()->ComputeStates(batch.rank, batch.slices, Pace::kPaused, parts_.pool));
      for (size_t i = 0; i < found.size(); ++i) {
        engine_.mutable_live().ranks[batch.rank.value()].slices[batch.slices[i].value()] = found[i];
      }
    }
    board_.ShowReading(reading.done_bytes(), reading.total_bytes());
    task.Update([&reading](TaskProgress& progress) {
      progress.step = "recomputes the digests of live memory";
      progress.done_bytes = reading.done_bytes();
      progress.total_bytes = reading.total_bytes();
    });
    DWS_KILLPOINT("receiver.resync.after_batch");
  }
  return OkStatus();
}

Status DriftWatch::ReadForResync(OperatorTask& task) {
  if (read_for_resync()) return OkStatus();
  const Status read = ReadAll(task);
  board_.EndReading();
  if (!read.ok()) {
    if (!absl::IsCancelled(read)) engine_.Lose(read);
    return read;
  }
  resync_read_ = engine_.weights();
  if (engine_.live().drifted) {
    board_.SetReadiness(false, engine_.DriftReason() + ": it is being repaired");
  }
  engine_.Show();
  return OkStatus();
}

bool DriftWatch::read_for_resync() const {
  return resync_read_ != nullptr && resync_read_ == engine_.weights();
}

void DriftWatch::EndResync() {
  resync_read_.reset();
  parts_.requests.EndResync(OkStatus());
}

void DriftWatch::EndVerifies(const Status& reason) {
  for (const ActiveVerify& active : verifies_) active.task->End(reason);
}

void DriftWatch::Forget() {
  resync_read_.reset();
  scrub_.Forget();
  board_.CountScrub(scrub_, 0, false);
}

}  // namespace dws
