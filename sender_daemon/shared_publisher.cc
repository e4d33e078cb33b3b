#include "sender_daemon/shared_publisher.h"

#include <utility>

#include "common/base/log.h"
#include "common/model/limits.h"
#include "sender_daemon/shared_retirement.h"

namespace dws {
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

SharedView SharedPublisher::view() const {
  SharedView view;
  {
    MutexLock lock(mutex_);
    view = view_;
  }
  view.failures = loop_.failures();
  view.trouble = loop_.trouble();
  return view;
}

Result<bool> SharedPublisher::Work(const RankStatePtr& offered) {
  if (progress_ == nullptr || progress_->writer.state() != offered) {
    DWS_RETURN_IF_ERROR(Adopt(offered));
  }
  // First: what cannot be written holds up no acknowledgement.
  if (receivers_->Refresh()) repair_.due = true;
  {
    MutexLock lock(mutex_);
    view_.receivers = receivers_->present();
  }
  DWS_RETURN_IF_ERROR(Begin());
  bool anchor = false;
  const RetainedVersionPtr next = Next(anchor);
  if (next == nullptr) return false;
  DWS_RETURN_IF_ERROR(progress_->writer.CheckFence());
  const bool again = progress_->last == next->version;
  if (again) LogWarning("shared_repair", {{"version", next->version.value()}});
  const Status written = WriteVersion(next, anchor);
  if (again && absl::IsAborted(written)) {
    // Its full tensors are gone: the next version's are taken.
    progress_->full_gone = next->version;
    return false;
  }
  // Also when it failed: that may make the room it takes.
  if (progress_->last.has_value()) Retire();
  DWS_RETURN_IF_ERROR(written);
  return true;
}

bool SharedPublisher::AwaitsReport() const {
  return progress_ != nullptr && progress_->last.has_value() &&
         receivers_->Awaited(progress_->writer.state()->stream, *progress_->last);
}

Status SharedPublisher::Begin() {
  if (progress_->begun) return OkStatus();
  DWS_RETURN_IF_ERROR(progress_->writer.Begin());
  progress_->catalog.emplace(
      files_, shared::VersionCatalog::Place{.job_id = options_.job_id,
                                            .rank = options_.trainer_rank,
                                            .stream = progress_->writer.state()->stream,
                                            .folder = progress_->writer.stream_folder(),
                                            .key = options_.key});
  progress_->begun = true;
  return OkStatus();
}

Status SharedPublisher::Adopt(RankStatePtr state) {
  const SharedWriter::Place place{
      .root = options_.dir.root, .job_id = options_.job_id, .key = options_.key};
  if (!receivers_.has_value()) {
    DWS_ASSIGN_OR_RETURN(const std::string folder,
                         SharedRankFolder(place.root, place.job_id, options_.trainer_rank));
    receivers_.emplace(
        files_, hub_,
        SharedReceivers::Place{.job_id = options_.job_id,
                               .folder = fmt::format("{}/{}", folder, shared::kReceiversName),
                               .key = options_.key},
        on_rejected_);
  }
  repair_.due = false;  // it begins with an anchor
  progress_ = std::make_unique<Progress>(
      SharedWriter(files_, place, std::move(state), [this] { return loop_.wanted(); }));
  MutexLock lock(mutex_);
  view_.newest.reset();
  return OkStatus();
}

bool SharedPublisher::RepairDue() {
  if (!repair_.due || hub_.clock().Now() < repair_.not_before) return false;
  repair_.due = receivers_->Stuck();  // it may have gone on meanwhile
  return repair_.due;
}

void SharedPublisher::NoteAnchor() {
  const TimePoint now = hub_.clock().Now();
  if (!std::exchange(repair_.due, false) || now < repair_.not_before) return;
  if (now - repair_.not_before > Repair::kDelayMax) repair_.delay = Repair::kDelayMin;
  repair_.not_before = now + repair_.delay;
  repair_.delay = std::min(repair_.delay * 2, Repair::kDelayMax);
}

RetainedVersionPtr SharedPublisher::Next(bool& anchor) {
  const RankState& state = *progress_->writer.state();
  const RetainedVersionPtr newest = state.log->Newest();
  if (newest == nullptr) return nullptr;
  anchor = true;
  if (!progress_->last.has_value()) return newest;
  const bool repair = RepairDue();
  if (progress_->last == newest->version) {
    return repair && progress_->full_gone != progress_->last ? newest : nullptr;
  }
  const auto chain = state.log->Chain(*progress_->last, newest->version);
  if (!chain.ok()) {
    LogWarning("shared_chain_broken", {{"after", progress_->last->value()},
                                       {"version", newest->version.value()},
                                       {"reason", Message(chain.status())}});
    return newest;
  }
  const RetainedVersionPtr& next = chain->front();
  anchor = repair || progress_->deltas + 1 >= options_.dir.anchor_every ||
           progress_->delta_bytes + next->object.size() > state.layout().size_bytes();
  return next;
}

Status SharedPublisher::WriteVersion(const RetainedVersionPtr& version, bool anchor) {
  auto written = progress_->writer.Write(*version, anchor);
  if (absl::IsAborted(written.status()) && version->base.has_value() &&
      progress_->last == *version->base) {
    // Its full tensors are gone: the trainer was quicker. Its delta is not.
    anchor = false;
    written = progress_->writer.Write(*version, anchor);
  }
  DWS_RETURN_IF_ERROR(written.status());
  progress_->catalog->Forget(version->version);  // its manifest is another
  progress_->last = version->version;
  if (anchor) NoteAnchor();
  progress_->deltas = anchor ? 0 : progress_->deltas + 1;
  progress_->delta_bytes = anchor ? 0 : progress_->delta_bytes + version->object.size();
  {
    MutexLock lock(mutex_);
    view_.newest = version->version;
    ++view_.versions;
    view_.anchors += anchor ? 1 : 0;
    view_.bytes += (*written)->size_bytes();
  }
  LogInfo("shared_published", {{"version", version->version.value()},
                               {"anchor", anchor},
                               {"bytes", (*written)->size_bytes()}});
  const Status told =
      options_.after_write.Run(fmt::to_string(version->version.value()),
                               limits::kSharedHookDeadline, [this] { return loop_.wanted(); });
  if (!told.ok()) {
    LogWarning("shared_after_write_failed",
               {{"version", version->version.value()}, {"reason", Message(told)}});
  }
  return OkStatus();
}

void SharedPublisher::Retire() {
  const SharedWriter& writer = progress_->writer;
  const RankState& state = *writer.state();
  Status status = progress_->catalog->Refresh();
  if (status.ok()) {
    status = RetireShared(files_, writer.rank_folder(), *progress_->catalog,
                          {.stream = state.stream,
                           .epoch = state.rank_epoch,
                           .last = *progress_->last,
                           .versions_max = options_.versions_max,
                           .unneeded = [&](WeightVersion version) {
                             return receivers_->AllBeyond(state.stream, version);
                           }});
  }
  if (!status.ok()) LogWarning("shared_not_retired", {{"reason", Message(status)}});
}

}  // namespace dws
