#include "receiver_daemon/worker/worker_board.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log/log.h"

namespace dws {
namespace {

// For people and other machines; the daemon decides nothing by it.
double UnixSecondsNow() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_epoch).count();
}

}  // namespace

WorkerBoard::WorkerBoard(Parts parts, const Options& options)
    : parts_(std::move(parts)), options_(options) {
  status_.version_since = parts_.clock.Now();
  status_.scrub.asked = options_.scrub;
  status_.commit_policy = options_.commit_policy;
}

WorkerStatus WorkerBoard::status() const {
  WorkerStatus status;
  std::string failing;
  {
    MutexLock lock(mutex_);
    status = status_;
    failing = Failing();
    if (reading_.has_value() && (status.stage == "idle" || status.stage == "staged")) {
      status.stage = "verifying";
      status.stage_done_bytes = reading_->done_bytes;
      status.stage_total_bytes = reading_->total_bytes;
    }
  }
  status.seconds_since_version = ToSeconds(parts_.clock.Now() - status.version_since);
  if (status.held_since.has_value()) {
    status.held_seconds = ToSeconds(parts_.clock.Now() - *status.held_since);
  }
  status.drain = parts_.requests.drain();
  if (status.stage == "idle" && status.drain == DrainStage::kDrained) status.stage = "drained";
  const RejectionCounts rejections = parts_.preparer.rejections();
  status.nacks = rejections.nacks;
  status.mismatches.delta = rejections.slices;
  status.staging_bytes_max = options_.staging_bytes_max;
  status.seconds_without_sender = ToSeconds(parts_.subscription.WithoutSender());
  status.stale = StaleReason(parts_.subscription, options_.stale);
  if (status.stale.empty()) status.stale = failing;
  if (status.stage == "fetching") {
    const uint64_t done = parts_.preparer.progress().done_bytes.load();
    status.stage_total_bytes = parts_.preparer.progress().total_bytes.load();
    // Headers come on top of what was announced for full tensors.
    status.stage_done_bytes = std::min(done, status.stage_total_bytes);
    const uint64_t direct = std::min(done, parts_.preparer.progress().direct_bytes.load());
    status.staging_bytes = std::min(done - direct, options_.staging_bytes_max);
    if (status.stage_total_bytes > 0 && done >= status.stage_total_bytes) status.stage = "staging";
  }
  return status;
}

void WorkerBoard::ShowLive(const LiveState& live, bool runs) {
  DWS_CHECK(!runs || live.proved());
  std::vector<Digest> tokens;
  for (const LiveState::Rank& rank : live.ranks) tokens.push_back(rank.state_token);
  parts_.subscription.SetLive(runs ? live.at : std::nullopt, tokens);
  MutexLock lock(mutex_);
  status_.live = live.at;
  // If the version is the same as before, after a repair or because an engine attached again, its
  // age stays.
  if (live.at.has_value() && live.at != status_.version) {
    status_.version = live.at;
    status_.version_since = parts_.clock.Now();
  }
  status_.state_token = live.proved() ? EngineToken(tokens) : Digest{};
}

void WorkerBoard::ShowCommit(CommitReport report, uint64_t attach_mismatches) {
  report.unix_seconds = UnixSecondsNow();
  {
    MutexLock lock(mutex_);
    ++status_.commits;
    if (report.repaired) ++status_.repairs;
    status_.delta_bytes += report.delta_bytes;
    status_.full_bytes += report.full_bytes;
    status_.model_bytes += report.model_bytes;
    status_.mismatches.attach += attach_mismatches;
    status_.last_commit = report;
    if (report.delta_bytes > 0 && report.full_bytes == 0) status_.last_delta = report;
  }
  if (parts_.on_commit) parts_.on_commit(report);
}

void WorkerBoard::ShowAcknowledged(Duration took) {
  {
    MutexLock lock(mutex_);
    DWS_CHECK(status_.last_commit.has_value());
    status_.last_commit->times[VersionStage::kAcknowledge] = took;
  }
  if (parts_.on_acknowledged) parts_.on_acknowledged(took);
}

void WorkerBoard::CountWriteMismatch() {
  MutexLock lock(mutex_);
  ++status_.mismatches.write;
}

void WorkerBoard::CountDrift(uint64_t MismatchCounts::*source, uint64_t slices) {
  MutexLock lock(mutex_);
  status_.mismatches.*source += slices;
}

void WorkerBoard::CountScrub(const Scrub& scrub, uint64_t bytes, bool pass_done) {
  MutexLock lock(mutex_);
  status_.scrub.bytes += bytes;
  status_.scrub.complete_since = scrub.complete_since();
  if (bytes > 0) status_.scrub.pass_expected = scrub.pass_expected();
  if (!pass_done) return;
  ++status_.scrub.passes;
  status_.scrub.last_pass_unix_seconds = UnixSecondsNow();
}

void WorkerBoard::SetStage(std::string stage, std::optional<WeightVersion> target,
                           uint64_t staging_bytes) {
  MutexLock lock(mutex_);
  status_.stage = std::move(stage);
  status_.target = target;
  status_.stage_done_bytes = status_.stage_total_bytes = 0;
  status_.staging_bytes = staging_bytes;
}

void WorkerBoard::ShowReading(uint64_t done_bytes, uint64_t total_bytes) {
  MutexLock lock(mutex_);
  reading_ = Reading{.done_bytes = done_bytes, .total_bytes = total_bytes};
}

void WorkerBoard::EndReading() {
  MutexLock lock(mutex_);
  reading_.reset();
}

void WorkerBoard::SetHeld(bool held) {
  MutexLock lock(mutex_);
  if (!held) {
    status_.held_since.reset();
  } else if (!status_.held_since.has_value()) {
    status_.held_since = parts_.clock.Now();
  }
}

void WorkerBoard::SetReplaced(uint64_t replaced) {
  MutexLock lock(mutex_);
  status_.replaced = replaced;
}

void WorkerBoard::CountEarly(bool staged) {
  MutexLock lock(mutex_);
  ++(staged ? status_.early_staged : status_.early_dropped);
}

void WorkerBoard::CountReplaced() {
  MutexLock lock(mutex_);
  ++status_.replaced;
}

void WorkerBoard::SetTrouble(std::string trouble) {
  MutexLock lock(mutex_);
  status_.trouble = std::move(trouble);
  failing_since_.reset();
}

void WorkerBoard::SetFailure(std::string trouble) {
  MutexLock lock(mutex_);
  status_.trouble = std::move(trouble);
  failed_at_ = parts_.clock.Now();
  if (!failing_since_.has_value()) failing_since_ = failed_at_;
}

std::string WorkerBoard::Failing() const {
  const Duration after = options_.stale.after;
  if (!own_ready_ || !failing_since_.has_value()) return "";
  if (failed_at_ - *failing_since_ < after) return "";
  return fmt::format("no newer version was reached for more than {} s: {}",
                     std::chrono::ceil<std::chrono::seconds>(after).count(), status_.trouble);
}

void WorkerBoard::SetDrain(bool drained) {
  if (drained != drained_) LogInfo("drain", {{"drained", drained}});
  drained_ = drained;
  parts_.requests.SetDrained(drained);
}

void WorkerBoard::SetPaused(bool paused) {
  MutexLock lock(mutex_);
  if (!paused) {
    status_.paused_since.reset();
  } else if (!status_.paused_since.has_value()) {
    status_.paused_since = parts_.clock.Now();
  }
}

void WorkerBoard::SetReadiness(bool ready, std::string reason) {
  {
    MutexLock lock(mutex_);
    own_ready_ = ready;
    own_reason_ = std::move(reason);
  }
  ShowReadiness();
}

void WorkerBoard::SetUnrecorded(std::string reason) {
  MutexLock lock(mutex_);
  unrecorded_ = std::move(reason);
}

void WorkerBoard::ShowReadiness() {
  MutexLock telling(telling_mutex_);
  std::string stale = StaleReason(parts_.subscription, options_.stale);
  bool ready = false;
  std::string reason;
  {
    MutexLock lock(mutex_);
    ready = own_ready_;
    reason = own_reason_;
    if (drained_) {
      ready = false;
      reason = "drained by an operator: no version is committed until that is undone" +
               (reason.empty() ? "" : "; " + reason);
    }
    if (stale.empty()) stale = Failing();
    for (const std::string& why :
         {unrecorded_, options_.stale.keeps_ready ? std::string() : stale}) {
      if (why.empty()) continue;
      ready = false;
      reason += (reason.empty() ? "" : "; ") + why;
    }
    if (status_.ready == ready && status_.reason == reason) return;
    status_.ready = ready;
    status_.reason = reason;
  }
  if (parts_.on_readiness) parts_.on_readiness(ready, reason);
}

}  // namespace dws
