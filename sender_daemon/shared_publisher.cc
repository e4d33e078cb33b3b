#include "sender_daemon/shared_publisher.h"

#include <algorithm>
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
      on_rejected_(std::move(on_rejected)) {}

SharedPublisher::~SharedPublisher() { Stop(); }

void SharedPublisher::Start() {
  thread_ = std::thread([this] { Run(); });
}

void SharedPublisher::Offer(RankStatePtr state) {
  MutexLock lock(mutex_);
  offered_ = std::move(state);
  ++offers_;
  changed_.NotifyAll();
}

bool SharedPublisher::settled() const {
  MutexLock lock(mutex_);
  return served_ == offers_ || !view_.trouble.ok();
}

void SharedPublisher::Stop() {
  stopping_.store(true);
  {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  receivers_.reset();
}

SharedView SharedPublisher::view() const {
  MutexLock lock(mutex_);
  return view_;
}

void SharedPublisher::Run() {
  Duration delay = options_.retry_delay;
  while (!stopping_.load()) {
    uint64_t seen = 0;
    {
      MutexLock lock(mutex_);
      seen = offers_;
    }
    const Result<bool> more = Step();
    if (!more.ok()) Fail(more.status());
    if (more.ok() && *more) continue;
    Duration wait = limits::kSharedPollDefault;
    if (more.ok()) {
      delay = options_.retry_delay;
    } else {
      wait = std::exchange(delay, std::min<Duration>(delay * 2, limits::kSharedRetryDelayMax));
    }
    MutexLock lock(mutex_);
    if (more.ok()) {
      served_ = seen;
      view_.trouble = OkStatus();
    }
    // A new version is no reason to try again at once what has just failed.
    const bool woken_by_offers = more.ok();
    if (woken_by_offers && offers_ != seen) continue;
    if (!stopping_.load()) changed_.WaitFor(mutex_, wait);
  }
}

void SharedPublisher::Fail(const Status& status) {
  if (absl::IsCancelled(status)) return;
  bool changed = false;
  {
    MutexLock lock(mutex_);
    changed = view_.trouble != status;
    view_.trouble = status;
    ++view_.failures;
  }
  if (changed) LogError("shared_publish_failed", {{"reason", Message(status)}});
}

Result<bool> SharedPublisher::Step() {
  RankStatePtr offered;
  {
    MutexLock lock(mutex_);
    offered = offered_;
  }
  if (offered == nullptr) return false;
  if (progress_ == nullptr || progress_->writer.state() != offered) {
    DWS_RETURN_IF_ERROR(Adopt(std::move(offered)));
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
      SharedWriter(files_, place, std::move(state), [this] { return !stopping_.load(); }));
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
  DWS_RETURN_IF_ERROR(progress_->writer.CheckFence());
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
                               limits::kSharedHookDeadline, [this] { return !stopping_.load(); });
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
