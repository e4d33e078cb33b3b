// A commit group's COMMIT, on the worker: pause, write, answer, release; and what its leader
// records.
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "receiver_daemon/engine/lease_control.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {
namespace {

// What the senders are told of it once it is released.
Prepared WithoutBytes(const Prepared& prepared) {
  Prepared summary{.target = prepared.target, .ranks = {}};
  for (const PreparedRank& rank : prepared.ranks) {
    summary.ranks.emplace_back();
    summary.ranks.back().fetched_bytes = rank.fetched_bytes;
    summary.ranks.back().state_token = rank.state_token;
  }
  return summary;
}

}  // namespace

// From running, for the group.
void Worker::NotePause() {
  if (!group_work_.released) return;
  group_work_.released = false;
  group_work_.paused_since = parts_.clock.Now();
  SetPaused(true);
}

void Worker::Obey(const PauseEngine& order) {
  Status paused = UnavailableError("the leader has no engine");
  if (engine_.has_value()) {
    NotePause();
    paused = LeaseControl(engine_->leases, parts_.clock, parts_.pulse).Pause(pause_timeout_);
  }
  DWS_KILLPOINT("group.pause.after_pause");
  parts_.group->OnPaused(order.round, paused);
}

void Worker::Obey(const WriteStaged& order) {
  DWS_KILLPOINT("group.commit.before_write");
  const auto staged = std::exchange(group_work_.staged, std::nullopt);
  Status status;
  bool untouched = true;
  if (!staged.has_value() || staged->round != order.round || weights_ == nullptr) {
    status = UnavailableError("the engine that was staged for is gone");
  } else if (staged->drifts != drifts_) {
    status = UnavailableError("live memory has drifted since it was staged for");
  } else {
    SetStage("committing", staged->prepared.target.version);
    status = CommitForGroup(staged->prepared, staged->begin);
    untouched = live_.known();
  }
  SetStage("idle", std::nullopt);
  if (!status.ok()) LogWarning("group_write_failed", {{"reason", ToString(status)}});
  DWS_KILLPOINT("group.commit.after_write");
  parts_.group->OnWritten(order.round, status, untouched);
  DWS_KILLPOINT("group.commit.after_answer");
  const OperatorTaskPtr resync = parts_.desk.resync();
  if (resync == nullptr || resync_read_ != weights_ || !status.ok()) return;
  if (!staged->resync) return parts_.group->OnResync();  // asked for while that was staged
  resync_read_.reset();
  resync->Update([&staged](TaskProgress& progress) {
    progress.version = staged->prepared.target.version;
    progress.step = fmt::format("memory has version {}, its commit group releases it",
                                progress.version->value());
  });
  parts_.desk.EndResync(OkStatus());
}

Status Worker::CommitForGroup(const Prepared& prepared, TimePoint begin) {
  NotePause();
  const bool first = !live_.at.has_value();
  const TimePoint staged = parts_.clock.Now();
  GroupWork::Written written{.prepared = WithoutBytes(prepared),
                             .report = ReportOf(prepared),
                             .attach_mismatches = first ? prepared.full_slices() : 0,
                             .begin = begin,
                             .staged = staged};
  const Status status = RunPipeline(prepared, CommitPipeline::Release::kByLeader).status();
  PublishLive();
  if (status.ok()) group_work_.written = std::move(written);
  return status;
}

void Worker::Obey(const ReleaseEngine& order) {
  DWS_KILLPOINT("group.release.before_resume");
  // Else the group has heard why not, or is about to.
  if (!engine_.has_value() || !live_.proved() || live_.at != order.version) return;
  static_cast<void>(  // always OK
      LeaseControl(engine_->leases, parts_.clock, parts_.pulse).Resume(VersionOf(live_)));
  DWS_KILLPOINT("group.release.after_resume");
  const TimePoint now = parts_.clock.Now();
  const auto since = std::exchange(group_work_.paused_since, std::nullopt);
  const Duration pause = since.has_value() ? now - *since : Duration::zero();
  group_work_.released = true;
  drift_paused_ = false;
  SetPaused(false);
  PublishLive();
  auto written = std::exchange(group_work_.written, std::nullopt);
  if (!written.has_value() || written->prepared.target.at() != order.version) return;
  pipeline_.Acknowledge(written->prepared, pause, written->staged - written->begin);
  written->report.pause = pause;
  written->report.commit = now - written->staged;
  PublishCommit(written->report, written->attach_mismatches);
  LogCommitted(written->report, now - written->begin, !since.has_value());
}

void Worker::Obey(const EndEngine&) {
  if (parts_.desk.resync() != nullptr) parts_.desk.EndResync(parts_.registry.ended());
}

void Worker::Obey(const RecordDecided& order) {
  const Status recorded = parts_.ledger.Append(
      GroupDecided{.stream = order.version.stream, .version = order.version.version});
  DWS_KILLPOINT("group.decide.after_record");
  if (!recorded.ok()) {
    LogError("ledger_append_failed", {{"record", "decided"}, {"reason", Message(recorded)}});
  }
  parts_.group->OnDecided(order, recorded);
}

void Worker::Obey(const RecordSettled& order) {
  const Status recorded = parts_.ledger.Append(
      GroupSettled{.stream = order.version.stream, .version = order.version.version});
  DWS_KILLPOINT("group.settle.after_record");
  if (!recorded.ok()) {
    LogError("ledger_append_failed", {{"record", "settled"}, {"reason", Message(recorded)}});
  }
}

}  // namespace dws
