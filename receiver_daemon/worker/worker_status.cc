// What the worker shows of itself: the parts of Worker that write WorkerStatus.
#include "receiver_daemon/worker/worker_status.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {
namespace {

// For people and other machines; nothing is decided by it.
double UnixSecondsNow() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_epoch).count();
}

}  // namespace

std::string StaleReason(const Subscription& subscription, const StaleRule& rule) {
  if (subscription.WithoutSender() < rule.after) return "";
  if (std::string behind = subscription.Behind(); !behind.empty()) return behind;
  return fmt::format("no accepted sender for more than {} s: {}",
                     std::chrono::ceil<std::chrono::seconds>(rule.after).count(),
                     subscription.MissingSenders());
}

WorkerStatus Worker::status() const {
  WorkerStatus status;
  {
    MutexLock lock(mutex_);
    status = status_;
  }
  status.seconds_since_version = ToSeconds(parts_.clock.Now() - status.version_since);
  status.drain = parts_.desk.drain();
  if (status.stage == "idle" && status.drain == DrainStage::kDrained) status.stage = "drained";
  const RejectionCounts rejections = preparer_.rejections();
  status.nacks = rejections.nacks;
  status.mismatches.delta = rejections.slices;
  status.staging_bytes_max = staging_bytes_max_;
  status.seconds_without_sender = ToSeconds(parts_.subscription.WithoutSender());
  status.stale = StaleReason(parts_.subscription, stale_);
  if (status.stage == "fetching") {
    const uint64_t done = preparer_.progress().done_bytes.load();
    status.stage_total_bytes = preparer_.progress().total_bytes.load();
    // Headers come on top of what was announced for full tensors.
    status.stage_done_bytes = std::min(done, status.stage_total_bytes);
    status.staging_bytes = std::min(done, staging_bytes_max_);
    if (status.stage_total_bytes > 0 && done >= status.stage_total_bytes) status.stage = "staging";
  }
  return status;
}

void Worker::PublishLive() {
  // In a group it counts as committed once all members have it, and the engine runs.
  const bool counts = live_.proved() && (parts_.group == nullptr || group_work_.released);
  std::vector<Digest> tokens;
  for (const LiveState::Rank& rank : live_.ranks) tokens.push_back(rank.state_token);
  parts_.subscription.SetLive(counts ? live_.at : std::nullopt, tokens);
  MutexLock lock(mutex_);
  status_.live = live_.at;
  // The same again, after a repair or for an engine that attached anew, is as old as before.
  if (live_.at.has_value() && live_.at != status_.version) {
    status_.version = live_.at;
    status_.version_since = parts_.clock.Now();
  }
  status_.state_token = live_.proved() ? EngineToken(tokens) : Digest{};
}

void Worker::PublishCommit(CommitReport report, uint64_t attach_mismatches) {
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
  }
  if (parts_.on_commit) parts_.on_commit(report);
}

void Worker::CountWriteMismatch() {
  MutexLock lock(mutex_);
  ++status_.mismatches.write;
}

void Worker::CountDrift(uint64_t MismatchCounts::*source, uint64_t slices) {
  MutexLock lock(mutex_);
  status_.mismatches.*source += slices;
}

void Worker::CountScrub(uint64_t bytes, bool pass_done) {
  MutexLock lock(mutex_);
  status_.scrub.bytes += bytes;
  status_.scrub.complete_since = scrub_.complete_since();
  if (bytes > 0) status_.scrub.pass_expected = scrub_.pass_expected();
  if (!pass_done) return;
  ++status_.scrub.passes;
  status_.scrub.last_pass_unix_seconds = UnixSecondsNow();
}

void Worker::SetStage(std::string stage, std::optional<WeightVersion> target) {
  MutexLock lock(mutex_);
  status_.stage = std::move(stage);
  status_.target = target;
  status_.stage_done_bytes = status_.stage_total_bytes = 0;
  status_.staging_bytes = 0;
}

void Worker::SetStageBytes(uint64_t done_bytes, uint64_t total_bytes) {
  MutexLock lock(mutex_);
  status_.stage_done_bytes = done_bytes;
  status_.stage_total_bytes = total_bytes;
}

void Worker::SetStaging(uint64_t bytes) {
  MutexLock lock(mutex_);
  status_.staging_bytes = bytes;
}

void Worker::SetTrouble(std::string trouble) {
  MutexLock lock(mutex_);
  status_.trouble = std::move(trouble);
}

void Worker::SetDrain(bool drained) {
  if (drained != drained_) LogInfo("drain", {{"drained", drained}});
  drained_ = drained;
  parts_.desk.SetDrained(drained);
}

void Worker::SetPaused(bool paused) {
  MutexLock lock(mutex_);
  if (!paused) {
    status_.paused_since.reset();
  } else if (!status_.paused_since.has_value()) {
    status_.paused_since = parts_.clock.Now();
  }
}

void Worker::SetReadiness(bool ready, std::string reason) {
  {
    MutexLock lock(mutex_);
    own_ready_ = ready;
    own_reason_ = std::move(reason);
  }
  ShowReadiness();
}

void Worker::SetUnrecorded(std::string reason) {
  MutexLock lock(mutex_);
  unrecorded_ = std::move(reason);
}

void Worker::ShowReadiness() {
  MutexLock telling(telling_mutex_);
  const std::string stale = StaleReason(parts_.subscription, stale_);
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
    for (const std::string& why : {unrecorded_, stale_.keeps_ready ? std::string() : stale}) {
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

void LogCommitted(const CommitReport& report, Duration took, bool first_release) {
  LogInfo("committed", {{"version", report.version.value()},
                        {"fetched_bytes", report.delta_bytes + report.full_bytes},
                        {"pause_ms", ToSeconds(report.pause) * 1e3},
                        {"seconds", ToSeconds(took)},
                        {"repaired", report.repaired},
                        {"first_release", first_release}});
}

NewestOffered FindNewestOffered(const WorkerStatus& worker, const Subscription& subscription) {
  NewestOffered newest;
  for (const Subscription::Peer& peer : subscription.Peers()) {
    if (peer.connected && peer.newest.has_value()) {
      newest.version = std::max(newest.version, peer.newest->value());
    }
  }
  const bool same_stream = worker.live.has_value() && worker.live->stream == subscription.stream();
  const uint64_t reached = same_stream ? worker.live->version.value() : 0;
  newest.lag = newest.version > reached ? newest.version - reached : 0;
  return newest;
}

std::string WhyEngineWaits(const WorkerStatus& worker, const Subscription& subscription) {
  if (worker.ready) return "";
  // Without a layout there is nothing that an engine could be attached to.
  if (const Result<LayoutSetPtr> layouts = subscription.Layouts(); !layouts.ok()) {
    const std::vector<Subscription::Peer> peers = subscription.Peers();
    const bool connected = std::any_of(
        peers.begin(), peers.end(), [](const Subscription::Peer& peer) { return peer.connected; });
    return fmt::format("{}: {}", connected ? "no trainer layout yet" : "no sender is connected",
                       Message(layouts.status()));
  }
  const bool moves = worker.stage == "fetching" || worker.stage == "staging" ||
                     worker.stage == "committing" || worker.stage == "verifying";
  if (worker.drain != DrainStage::kNone || !moves) return worker.reason;
  const std::string what =
      worker.target.has_value() ? fmt::format("version {}", worker.target->value()) : "live memory";
  const std::string stage = worker.stage == "fetching"     ? "fetched"
                            : worker.stage == "staging"    ? "verified and staged"
                            : worker.stage == "committing" ? "committed"
                                                           : "verified";
  if (worker.stage_total_bytes == 0) return fmt::format("{} is being {}", what, stage);
  return fmt::format("{} is being {}: {} of {} bytes", what, stage, worker.stage_done_bytes,
                     worker.stage_total_bytes);
}

}  // namespace dws
