// The engine is paused between the two clock readings of CommitPipeline::Commit only: slow work is
// done before, in Prepare, or after, in Report.
#include "receiver_daemon/worker/version_runner.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "receiver_daemon/weights/direct_write.h"

namespace dws {
namespace {

// What is reported to the senders about a version once the engine runs with it.
Prepared WithoutBytes(const Prepared& prepared) {
  Prepared summary{
      .target = prepared.target, .ranks = {}, .begun = prepared.begun, .staged = prepared.staged};
  for (const PreparedRank& rank : prepared.ranks) {
    summary.ranks.emplace_back();
    summary.ranks.back().fetched_bytes = rank.fetched_bytes;
    summary.ranks.back().state_token = rank.state_token;
  }
  return summary;
}

}  // namespace

Result<std::optional<Prepared>> VersionRunner::PrepareAdoption(const SyncTarget& target) {
  DWS_CHECK(parts_.engine.live().known() && !parts_.engine.live().at.has_value());
  const TimePoint begun = parts_.clock.Now();
  std::optional<VersionAt> intended;
  std::optional<VersionAt> committed;
  const ReceiverLedgerState& ledger = parts_.ledger.state();
  if (const auto& open = ledger.open_intent()) intended = VersionAt{open->stream, open->target};
  if (const auto& last = ledger.committed()) committed = VersionAt{last->stream, last->version};
  const std::optional<VersionAt> version = Adoptable(intended, committed, target.at());
  if (!version.has_value()) return std::optional<Prepared>();
  const std::optional<SyncTarget> last = parts_.subscription.TargetAt(version->version);
  if (!last.has_value() || !parts_.engine.weights()->layouts().Fits(*last)) {
    return std::optional<Prepared>();
  }
  Result<std::optional<Prepared>> prepared =
      parts_.preparer.PrepareAdoption(parts_.engine.live(), *last);
  // Adoption is optional: the target is reached without it, too. The description of a version that
  // was published before the present cuts were made does not fit.
  if (absl::IsAborted(prepared.status()) || absl::IsDataLoss(prepared.status())) {
    return std::optional<Prepared>();
  }
  if (prepared.ok() && prepared->has_value()) OnPrepared(**prepared, begun);
  return prepared;
}

Result<Prepared> VersionRunner::Prepare(const SyncTarget& target, Way way,
                                        const std::function<bool()>& wanted) {
  parts_.board.SetStage("fetching", target.version);
  const TimePoint begun = parts_.clock.Now();
  const std::optional<LiveState> begins =
      way == Way::kDelta ? AsOldest(target) : std::optional<LiveState>();
  DirectWrite direct(*parts_.engine.weights());
  const bool may_write_now = !stages_all_ && parts_.engine.MayWriteNow();
  const PrepareOrder order{
      .way = way,
      .wanted = wanted,
      .direct = may_write_now ? &direct : nullptr,
      .stage = [&] { return wanted() ? StageOf(target) : EarlyVersion::Stage::kGone; },
      .await = [&](Duration time) { parts_.subscription.AwaitTarget(target.version, time); }};
  Result<Prepared> prepared = parts_.preparer.Prepare(
      *parts_.engine.weights(), begins.has_value() ? *begins : parts_.engine.live(), target, order);
  // Staged tensors are written through memory that was taken when the engine attached.
  if (may_write_now && absl::IsResourceExhausted(prepared.status())) stages_all_ = true;
  // Only a commit of this version, which reads memory back, shows what these slices hold.
  for (const OwnedSlice& slice : direct.touched()) {
    parts_.engine.mutable_live().ranks[slice.rank.value()].slices[slice.slice.value()] = {
        .kind = SliceState::Kind::kDiffers, .digest = {}};
  }
  if (prepared.ok() && target.in_the_making()) {
    std::optional<SyncTarget> published = Now(target);
    if (!published.has_value() || published->in_the_making()) {
      return UnavailableError("version {} is not offered any more", target.version.value());
    }
    prepared->target = *std::move(published);
  }
  if (prepared.ok()) OnPrepared(*prepared, begun);
  return prepared;
}

bool VersionRunner::MayPrepareEarly(const SyncTarget& target) const {
  const std::optional<VersionAt>& live = parts_.engine.live().at;
  for (uint32_t r = 0; r < target.ranks.size(); ++r) {
    const SyncTarget::Rank& rank = target.ranks[r];
    if (!rank.in_the_making()) continue;
    if (rank.captured) return false;  // nobody can begin to read it until it is published
    const bool delta = rank.base.has_value();
    if (delta && (!live.has_value() || rank.base != live->version)) return false;
    if (!parts_.sources.reads_captures(delta ? Content::kDelta : Content::kFull,
                                       {.target = target, .rank = TrainerRank(r)})) {
      return false;
    }
  }
  return target.in_the_making();
}

std::optional<SyncTarget> VersionRunner::Now(const SyncTarget& target) const {
  std::optional<SyncTarget> now =
      parts_.subscription.TargetAt(target.version, Offered::kInTheMaking);
  const bool same = now.has_value() && now->stream == target.stream &&
                    parts_.engine.weights()->layouts().Fits(*now);
  return same ? now : std::nullopt;
}

EarlyVersion::Stage VersionRunner::StageOf(const SyncTarget& target) const {
  const std::optional<SyncTarget> now = Now(target);
  if (!now.has_value()) return EarlyVersion::Stage::kGone;
  return now->in_the_making() ? EarlyVersion::Stage::kCapturing : EarlyVersion::Stage::kPublished;
}

std::optional<LiveState> VersionRunner::AsOldest(const SyncTarget& target) const {
  if (parts_.engine.live().at.has_value()) return std::nullopt;
  const std::optional<SyncTarget> oldest = parts_.subscription.Oldest();
  if (!oldest.has_value() || oldest->stream != target.stream || oldest->version >= target.version ||
      !parts_.engine.weights()->layouts().Fits(*oldest)) {
    return std::nullopt;
  }
  LiveState live = parts_.engine.live();
  const Result<size_t> differ = parts_.preparer.DescribeAll(*oldest, live);
  // The target is reached without it, too.
  if (!differ.ok() || *differ > 0) return std::nullopt;
  live.at = oldest->at();
  return live;
}

void VersionRunner::OnPrepared(Prepared& prepared, TimePoint begun) const {
  prepared.begun = begun;
  prepared.staged = parts_.clock.Now();
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    parts_.senders.Staged(prepared.target, TrainerRank(r));
  }
}

Result<WrittenVersion> VersionRunner::Commit(const Prepared& prepared,
                                             CommitPipeline::Release release) {
  LiveState& live = parts_.engine.mutable_live();
  const bool first = !live.at.has_value();
  WrittenVersion written{.prepared = WithoutBytes(prepared),
                         .report = ReportOf(prepared),
                         .attach_mismatches = first ? prepared.full_slices() : 0,
                         .committing = parts_.clock.Now(),
                         .first = first};
  LeaseControl control = parts_.engine.Control();
  const CommitPipeline::Engine engine{.control = control,
                                      .weights = *parts_.engine.weights(),
                                      .is_current = [this] { return parts_.engine.IsCurrent(); }};
  if (parts_.served != nullptr) parts_.served->Withdraw();  // not in the pause: it waits for reads
  const Result<CommitPipeline::Done> done = pipeline_.Commit(engine, live, prepared, release);
  if (!done.ok()) {
    parts_.engine.Show();  // memory may be what it was
    if (absl::IsDataLoss(done.status())) parts_.board.CountWriteMismatch();
    return done.status();
  }
  DWS_CHECK(live.proved() && *live.at == prepared.target.at());
  written.committed = parts_.clock.Now();
  written.pause = done->pause;
  for (size_t i = 0; i < kVersionStages; ++i) written.report.times.spent[i] += done->times.spent[i];
  return written;
}

void VersionRunner::Report(WrittenVersion written, Duration pause, bool first_release) {
  // An engine may let a staged version wait for long: that time is not counted here.
  const Duration staging = written.prepared.staged - written.prepared.begun;
  const TimePoint now = parts_.clock.Now();
  CommitReport& report = written.report;
  report.pause = pause;
  report.commit = now - written.committing;
  // A commit group's leader may release it later.
  report.times[VersionStage::kResume] += now - written.committed;
  report.times[VersionStage::kOther] = std::max<Duration>(
      now - written.prepared.begun + report.times[VersionStage::kQueue] - report.times.sum(),
      Duration::zero());
  // Shown first, so that a reader who hears of the commit from the sender finds it counted here.
  parts_.board.ShowCommit(report, written.attach_mismatches);
  pipeline_.Acknowledge(written.prepared, pause, staging);
  parts_.board.ShowAcknowledged(parts_.clock.Now() - now);
  LogCommitted(report, staging + report.commit, first_release);
}

TimePoint VersionRunner::Offered(const Prepared& prepared) const {
  const std::optional<VersionAt>& live = parts_.engine.live().at;
  const SyncTarget& target = prepared.target;
  // A repair of what the engine has, and an older version, are late for reasons of their own.
  if (live.has_value() && live->stream == target.stream && live->version >= target.version) {
    return prepared.begun;
  }
  const std::optional<TimePoint> offered = parts_.subscription.OfferedAt(target.at());
  if (!offered.has_value()) return prepared.begun;
  return std::max(*offered, std::min(parts_.engine.known_since(), prepared.begun));
}

VersionTimes VersionRunner::TimesBefore(const Prepared& prepared) const {
  VersionTimes times;
  const TimePoint offered = Offered(prepared);
  times[VersionStage::kQueue] = std::max<Duration>(prepared.begun - offered, Duration::zero());
  times[VersionStage::kHold] = parts_.clock.Now() - prepared.staged;
  if (prepared.ranks.empty()) return times;
  const PreparedRank& slowest = *std::ranges::max_element(
      prepared.ranks, {}, [](const PreparedRank& rank) { return rank.fetch + rank.stage; });
  Duration stage =
      VersionTimes::Split(slowest.stage, prepared.upload, times[VersionStage::kUpload]);
  Duration fetch = slowest.fetch;
  // Work on a version that was not announced yet is not part of its latency: its transfer mostly
  // waits for the trainers.
  Duration& early = times[VersionStage::kEarly];
  const Duration before = std::clamp<Duration>(offered - prepared.begun, Duration::zero(),
                                               prepared.staged - prepared.begun);
  fetch = VersionTimes::Split(fetch, before, early);
  stage = VersionTimes::Split(stage, before - early, early);
  early = before;
  times[VersionStage::kFetch] = fetch;
  times[VersionStage::kStage] = stage;
  return times;
}

CommitReport VersionRunner::ReportOf(const Prepared& prepared) const {
  CommitReport report{.version = prepared.target.version,
                      .staging_bytes = prepared.staging_bytes(),
                      .times = TimesBefore(prepared),
                      .repaired = prepared.repairs()};
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    const PreparedRank& rank = prepared.ranks[r];
    const RankLayout& layout = parts_.engine.weights()->layouts().rank(TrainerRank(r));
    DWS_CHECK(rank.fetched_bytes >= rank.full_bytes());
    report.rank_delta_bytes.push_back(rank.fetched_bytes - rank.full_bytes());
    report.delta_bytes += report.rank_delta_bytes.back();
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
