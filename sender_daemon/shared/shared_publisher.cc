#include "sender_daemon/shared/shared_publisher.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "sender_daemon/shared/shared_retirement.h"

namespace dws {
namespace {

// How often reports are read while full tensors are written, which takes long.
constexpr Duration kReportsInterval = std::chrono::milliseconds(50);

// Returns whether `first` is the first version of its stream. A view may begin later, so it asks
// the trainer's own state.
bool BeginsStream(const RankState& state, const RetainedVersion& first, const ReceiverHub& hub) {
  if (state.layout().view().empty()) return state.begins_stream;
  const RankStatePtr trainer = hub.Current();
  if (trainer == nullptr || trainer->stream != state.stream || !trainer->begins_stream)
    return false;
  const RetainedVersionPtr begins = trainer->log->First();
  return begins != nullptr && begins->version == first.version;
}

}  // namespace

SharedPublisher::SharedPublisher(Options options, FileSystem& files, ReceiverHub& hub,
                                 SharedReceivers::OnRejected on_rejected)
    : options_(std::move(options)),
      files_(files),
      hub_(hub),
      on_rejected_(std::move(on_rejected)),
      loop_({.failed_event = "shared_publish_failed",
             .retry_delay = options_.retry_delay,
             .impatient = [this] { return AwaitsReport(); },
             .soon = limits::kSharedPollMin},
            [this](const RankStatePtr& offered) { return Work(offered); }) {}

SharedPublisher::~SharedPublisher() { Stop(); }

void SharedPublisher::Stop() {
  loop_.Stop();
  receivers_.reset();
}

void SharedPublisher::Offer(RankStatePtr state) {
  const RetainedVersionPtr newest = state->log->Newest();
  {
    MutexLock lock(mutex_);
    offered_ = {.state = state, .version = std::nullopt};
    if (newest != nullptr) offered_.version = newest->version;
  }
  loop_.Offer(std::move(state));
}

bool SharedPublisher::settled() const {
  {
    MutexLock lock(mutex_);
    if (offered_.version.has_value() && written_ == offered_) return true;
  }
  return loop_.settled();
}

SharedView SharedPublisher::view() const {
  SharedView view;
  {
    MutexLock lock(mutex_);
    view = view_;
  }
  view.folder = options_.dir.root;
  view.failures = loop_.failures();
  return view;
}

Result<bool> SharedPublisher::Work(const RankStatePtr& offered) {
  if (progress_ == nullptr || progress_->writer.state() != offered) {
    DWS_RETURN_IF_ERROR(Adopt(offered));
  }
  DWS_CHECK(progress_ != nullptr && receivers_.has_value());
  // Before writing, so that a failure to write does not block acknowledgements.
  ReadReports();
  const Status begun = Begin();
  Result<bool> written = begun.ok() ? WriteNext() : begun;
  // Also where a version does not fit: a welcome may.
  const bool fits_not = absl::IsResourceExhausted(written.status());
  if (begun.ok() && (written.ok() || fits_not) && progress_->unreported.empty()) {
    Status kept = progress_->writer.KeepWelcome(hub_.clock().Now());
    if (kept.ok() && progress_->last.has_value()) {
      kept = progress_->reach.Look(*progress_->catalog, *progress_->last, hub_.clock().Now(),
                                   [this] { (void)loop_.wanted(); });
    }
    if (written.ok() && !kept.ok()) written = kept;
  }
  // This also runs after a failed write: removing old versions may make the room that the write
  // needs. A sender that was replaced removes nothing.
  const bool retires = written.ok() ? *written : !absl::IsFailedPrecondition(written.status());
  if (retires && progress_->catalog.has_value() && progress_->unreported.empty()) {
    Retire(!written.ok());
  }
  return written;
}

void SharedPublisher::ReadReports() {
  const TimePoint begin = hub_.clock().Now();
  if (receivers_->Refresh()) repair_.due = true;
  {
    MutexLock lock(mutex_);
    view_.receivers = receivers_->present();
  }
  // Limits the time for reports to about a tenth, however many there are; the rest of the time is
  // for the full tensors.
  const TimePoint end = hub_.clock().Now();
  reports_due_ = end + std::max<Duration>(kReportsInterval, (end - begin) * 9);
}

bool SharedPublisher::Meanwhile() {
  if (hub_.clock().Now() >= reports_due_) {
    ReadReports();
    // A failure here and below occurs again in the next round, which reports it.
    if (progress_->unreported.empty()) {
      (void)progress_->writer.KeepWelcome(hub_.clock().Now());
    }
  }
  const RetainedVersionPtr newest = progress_->writer.state()->log->Newest();
  DWS_CHECK(newest != nullptr);  // a version is being written
  while (progress_->unreported.empty() && progress_->last.has_value() &&
         *progress_->last < newest->version) {
    const auto next = NextInChain(*newest);
    if (!next.ok() || !WriteDelta(*next).ok()) break;
  }
  return loop_.wanted();
}

bool SharedPublisher::AwaitsReport() const {
  return progress_ != nullptr && progress_->last.has_value() &&
         receivers_->Awaited(progress_->writer.state()->stream, *progress_->last);
}

Status SharedPublisher::Begin() {
  if (progress_->begun) return OkStatus();
  SharedWriter& writer = progress_->writer;
  DWS_RETURN_IF_ERROR(writer.Begin());
  if (!progress_->catalog.has_value()) {
    if (options_.clean != nullptr) {
      const Status cleaned = options_.clean(writer.rank_folder());
      if (!cleaned.ok()) LogWarning("uploads_not_given_up", {{"reason", Message(cleaned)}});
    }
    progress_->catalog.emplace(files_,
                               shared::VersionCatalog::Place{.job_id = options_.job_id,
                                                             .rank = options_.trainer_rank,
                                                             .stream = writer.state()->stream,
                                                             .folder = writer.stream_folder(),
                                                             .key = options_.key});
  }
  DWS_RETURN_IF_ERROR(writer.WriteWelcome());
  progress_->begun = true;
  return OkStatus();
}

Status SharedPublisher::Adopt(RankStatePtr state) {
  const SharedWriter::Place place{.root = options_.dir.root,
                                  .job_id = options_.job_id,
                                  .key = options_.key,
                                  .profile = options_.dir.profile};
  if (!receivers_.has_value()) {
    DWS_ASSIGN_OR_RETURN(const std::string folder,
                         SharedRankFolder(place.root, place.job_id, options_.trainer_rank));
    receivers_.emplace(
        files_, hub_,
        SharedReceivers::Place{.job_id = options_.job_id,
                               .rank = options_.trainer_rank,
                               .view = options_.view,
                               .folder = fmt::format("{}/{}", folder, shared::kReceiversName),
                               .key = options_.key},
        on_rejected_);
  }
  repair_.due = false;  // this state begins with an anchor
  progress_ = std::make_unique<Progress>(
      SharedWriter(files_, place, std::move(state), [this] { return Meanwhile(); }));
  MutexLock lock(mutex_);
  view_.newest.reset();
  written_ = {};  // releases the old state, which has a copy of the model
  return OkStatus();
}

bool SharedPublisher::RepairDue() {
  if (hub_.clock().Now() < repair_.not_before) return false;
  // The receiver may have continued meanwhile.
  const Status& cut_off = progress_->reach.cut_off();
  repair_.asked = FullAsked();
  repair_.due = (repair_.due && receivers_->Stuck()) || repair_.asked || !cut_off.ok();
  repair_.reason = !repair_.due    ? ""
                   : repair_.asked ? "a receiver asks for full tensors"
                   : !cut_off.ok() ? Message(cut_off)
                                   : "a receiver refused what is there";
  return repair_.due;
}

bool SharedPublisher::FullAsked() const {
  const auto lacking = receivers_->Lacking(progress_->writer.state()->stream);
  return lacking.has_value() && lacking > progress_->reachable && lacking <= progress_->last;
}

void SharedPublisher::NoteAnchor(WeightVersion version) {
  const TimePoint now = hub_.clock().Now();
  if (!std::exchange(repair_.due, false) || now < repair_.not_before) return;
  if (!repair_.reason.empty()) {
    LogWarning(repair_.asked ? "shared_full_asked" : "shared_repair",
               {{"version", version.value()}, {"reason", repair_.reason}});
  }
  repair_.reason.clear();
  if (now - repair_.not_before > Repair::kDelayMax) repair_.delay = Repair::kDelayMin;
  repair_.not_before = now + repair_.delay;
  repair_.delay = std::min(repair_.delay * 2, Repair::kDelayMax);
}

Result<bool> SharedPublisher::WriteNext() {
  const RetainedVersionPtr newest = progress_->writer.state()->log->Newest();
  if (newest == nullptr) return false;
  DWS_RETURN_IF_ERROR(Report());
  if (!progress_->last.has_value()) {
    const RetainedVersionPtr first = progress_->writer.state()->log->First();
    DWS_ASSIGN_OR_RETURN(const bool by_digests, BeginsWith(first));
    DWS_RETURN_IF_ERROR(by_digests ? WriteDigests(*first) : WriteAnchor(newest, nullptr));
    return true;
  }
  DWS_CHECK(*progress_->last <= newest->version);
  const bool behind = *progress_->last != newest->version;
  if (behind) {
    const auto next = NextInChain(*newest);
    if (!next.ok()) {
      if (!progress_->writer.state()->log->HasFull(*progress_->last, newest->version)) {
        LogWarning("shared_chain_broken", {{"after", progress_->last->value()},
                                           {"version", newest->version.value()},
                                           {"reason", Message(next.status())}});
      }
      DWS_RETURN_IF_ERROR(WriteAnchor(newest, nullptr));
      return true;
    }
    DWS_RETURN_IF_ERROR(WriteDelta(*next));
  } else if (RepairDue() && progress_->full_gone != progress_->last) {
    DWS_RETURN_IF_ERROR(WriteAnchor(newest, nullptr));
    return true;
  }
  // Also while a little behind: a publisher that never catches up writes anchors too.
  if (const std::optional<PendingFull> pending_full = progress_->pending_full;
      pending_full.has_value()) {
    const Status written = WriteAnchor(pending_full->version, pending_full->delta);
    // Somebody has removed its folder: the next attempt writes its delta again, too.
    if (absl::IsNotFound(written)) progress_->pending_full->delta = nullptr;
    DWS_RETURN_IF_ERROR(written);
    return true;
  }
  return behind;
}

Result<RetainedVersionPtr> SharedPublisher::NextInChain(const RetainedVersion& newest) const {
  DWS_ASSIGN_OR_RETURN(const auto chain,
                       progress_->writer.state()->log->Chain(*progress_->last, newest.version));
  return chain.front();
}

Result<bool> SharedPublisher::BeginsWith(const RetainedVersionPtr& first) {
  const RankState& state = *progress_->writer.state();
  if (!options_.dir.from_base || first == nullptr || !BeginsStream(state, *first, hub_))
    return false;
  DWS_RETURN_IF_ERROR(progress_->catalog->Refresh());
  // It is there if an attempt has failed after the manifest was written.
  const shared::ManifestPtr there = progress_->catalog->versions().Newest();
  return there == nullptr ||
         there->name == shared::VersionName{.version = first->version, .epoch = state.rank_epoch};
}

Status SharedPublisher::WriteDigests(const RetainedVersion& version) {
  DWS_RETURN_IF_ERROR(progress_->writer.CheckFence());
  DWS_ASSIGN_OR_RETURN(const shared::ManifestPtr digests, progress_->writer.WriteDigests(version));
  return NoteWritten(version, digests->size_bytes(), &SharedView::bases);
}

Status SharedPublisher::WriteDelta(const RetainedVersionPtr& version) {
  DWS_CHECK(version->base == progress_->last);
  DWS_RETURN_IF_ERROR(progress_->writer.CheckFence());
  DWS_ASSIGN_OR_RETURN(shared::ManifestPtr delta, progress_->writer.WriteDelta(*version));
  progress_->deltas += 1;
  progress_->delta_bytes += delta->Find(shared::kDeltaName)->size_bytes;
  const Status reported = NoteWritten(*version, delta->size_bytes(), &SharedView::deltas);
  if (!progress_->pending_full.has_value() &&
      (RepairDue() || progress_->deltas >= options_.dir.anchor_every ||
       progress_->delta_bytes > progress_->writer.state()->layout().size_bytes())) {
    progress_->pending_full = PendingFull{.version = version, .delta = std::move(delta)};
    progress_->deltas = 0;
    progress_->delta_bytes = 0;
  }
  return reported;
}

Status SharedPublisher::WriteAnchor(const RetainedVersionPtr& version,
                                    const shared::ManifestPtr& delta) {
  DWS_RETURN_IF_ERROR(progress_->writer.CheckFence());
  // The deltas counted so far follow the previous anchor and are subtracted below. The deltas
  // counted after a pending version follow that version.
  const size_t deltas = delta == nullptr ? progress_->deltas : 0;
  const uint64_t delta_bytes = delta == nullptr ? progress_->delta_bytes : 0;
  const Repair known = repair_;
  repair_.due = false;
  // A receiver that asks for full tensors meanwhile gets these, and they lead past what is missing.
  const auto reachable = std::exchange(progress_->reachable, WeightVersion(UINT64_MAX));
  const ReachWatch reach = std::exchange(progress_->reach, ReachWatch());
  const auto written = progress_->writer.WriteAnchor(*version, delta.get());
  progress_->reachable = reachable;
  progress_->reach = reach;
  const bool damage_found = repair_.due;  // found during the write, perhaps in this version
  repair_.due = known.due || damage_found;
  const auto settle_owed = [&] {
    if (progress_->pending_full.has_value() &&
        progress_->pending_full->version->version <= version->version) {
      progress_->pending_full.reset();
    }
  };
  if (absl::IsAborted(written.status()) && progress_->last.has_value() &&
      *progress_->last >= version->version) {
    // The trainer published faster than we read: try the next version's full tensors.
    progress_->full_gone = version->version;
    settle_owed();
    progress_->deltas = options_.dir.anchor_every;
    return OkStatus();
  }
  if (absl::IsAborted(written.status()) &&
      progress_->writer.state()->log->Newest()->version > version->version) {
    // A full version has overwritten it: the newer version comes next.
    LogInfo("shared_version_skipped",
            {{"version", version->version.value()}, {"reason", Message(written.status())}});
    return OkStatus();
  }
  DWS_RETURN_IF_ERROR(written.status());
  settle_owed();
  // Deltas written meanwhile stay counted. The count is lower if one of them is to be an anchor.
  progress_->deltas -= std::min(deltas, progress_->deltas);
  progress_->delta_bytes -= std::min(delta_bytes, progress_->delta_bytes);
  repair_ = known;
  NoteAnchor(version->version);
  repair_.due |= damage_found;
  DWS_CHECK(delta == nullptr || (*written)->size_bytes() >= delta->size_bytes());
  return NoteWritten(*version,
                     (*written)->size_bytes() - (delta == nullptr ? 0 : delta->size_bytes()),
                     &SharedView::anchors);
}

Status SharedPublisher::NoteWritten(const RetainedVersion& version, uint64_t bytes,
                                    uint64_t SharedView::*kind) {
  progress_->catalog->Forget(version.version);  // its manifest has changed
  progress_->last = std::max(progress_->last.value_or(version.version), version.version);
  if (kind == &SharedView::anchors) {
    progress_->reachable = progress_->last;
    progress_->reach = ReachWatch();
  }
  progress_->unreported.push_back({.version = version.version, .bytes = bytes, .kind = kind});
  return Report();
}

Status SharedPublisher::Report() {
  std::vector<Unreported>& unreported = progress_->unreported;
  for (; !unreported.empty(); unreported.erase(unreported.begin())) {
    const Unreported& one = unreported.front();
    const Status reported =
        options_.after_write.Run(fmt::to_string(one.version.value()), limits::kSharedHookDeadline,
                                 [this] { return loop_.wanted(); });
    if (!reported.ok() && options_.dir.after_write_required) {
      return Annotate(reported, fmt::format("after version {}, which counts as published when the "
                                            "command succeeds",
                                            one.version.value()));
    }
    if (!reported.ok()) {
      LogWarning("shared_after_write_failed",
                 {{"version", one.version.value()}, {"reason", Message(reported)}});
    }
    LogInfo("shared_published", {{"version", one.version.value()},
                                 {"view", options_.view},
                                 {"anchor", one.kind == &SharedView::anchors},
                                 {"bytes", one.bytes}});
    MutexLock lock(mutex_);
    view_.newest = std::max(view_.newest.value_or(one.version), one.version);
    written_ = {.state = progress_->writer.state(), .version = view_.newest};
    view_.*one.kind += 1;
    view_.bytes += one.bytes;
  }
  return OkStatus();
}

void SharedPublisher::Retire(bool failed) {
  DWS_CHECK(progress_->catalog.has_value());
  const SharedWriter& writer = progress_->writer;
  shared::VersionCatalog& catalog = *progress_->catalog;
  const RankState& state = *writer.state();
  const RetirementRule rule{.stream = state.stream,
                            .epoch = state.rank_epoch,
                            .last = progress_->last,
                            .versions_max = options_.versions_max,
                            .unneeded = [&](const StreamId& stream, WeightVersion version) {
                              return receivers_->AllBeyond(stream, version);
                            }};
  Status status = catalog.Refresh();
  if (status.ok()) status = RetireShared(files_, writer.rank_folder(), catalog, rule);
  if (status.ok() && failed) {
    status = RetireOlder(files_, writer.rank_folder(), catalog.place(), rule);
  }
  if (options_.view.empty() && !progress_->views_retired) {
    const Status others = RetireViews(files_, options_.dir.root, options_.job_id,
                                      options_.trainer_rank, options_.dir.views, state.stream);
    progress_->views_retired = others.ok();
    if (status.ok()) status = others;
  }
  if (!status.ok()) LogWarning("shared_not_retired", {{"reason", Message(status)}});
}

}  // namespace dws
