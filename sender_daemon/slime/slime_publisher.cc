// The numbers refer to the rules in slime_publisher.h.
#include "sender_daemon/slime/slime_publisher.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"

namespace dws {

SlimePublisher::SlimePublisher(Options options, FileSystem& files)
    : options_(std::move(options)),
      files_(files),
      pool_(std::max<size_t>(options_.dir.threads, 1) - 1),  // the caller takes part
      view_{.folder = options_.dir.root},
      loop_({.failed_event = "slime_publish_failed", .retry_delay = options_.retry_delay},
            [this](const RankStatePtr& offered) { return Work(offered); }) {}

SlimeView SlimePublisher::view() const {
  SlimeView view;
  {
    MutexLock lock(mutex_);
    view = view_;
  }
  view.failures = loop_.failures();
  view.trouble = loop_.trouble();
  return view;
}

Result<bool> SlimePublisher::Work(const RankStatePtr& offered) {
  if (progress_ == nullptr || progress_->writer.state() != offered) {
    DWS_RETURN_IF_ERROR(Adopt(offered));
  }
  DWS_RETURN_IF_ERROR(Report());
  const Result<Next> chosen = ChooseNext();
  if (absl::IsFailedPrecondition(chosen.status())) ForgetFolder();
  DWS_RETURN_IF_ERROR(chosen.status());
  const Next& next = *chosen;
  if (next.version == nullptr) return false;
  const uint64_t number = next.version->version.value();
  const Result<bool> begun = progress_->folder.Begin(number);
  if (absl::IsFailedPrecondition(begun.status())) ForgetFolder();
  DWS_RETURN_IF_ERROR(begun.status());
  if (!*begun) {
    NoteWritten(next.version->version, progress_->folder.IsFull(number), 0);
    DWS_RETURN_IF_ERROR(Report());
    return true;
  }
  const Status written = WriteVersion(next);
  if (!written.ok()) {
    const bool damaged = progress_->writer.damaged();
    if (absl::IsAborted(written) || damaged) progress_->last.reset();  // 2
    if (damaged && next.full) {
      progress_->damaged = next.version->version;
      if (options_.on_damage) options_.on_damage(offered);
    }
    // 3. If the disk is full, perhaps the incomplete version fills it.
    const Status abandoned = progress_->folder.Abandon(number);
    if (!abandoned.ok()) LogWarning("slime_not_removed", {{"reason", Message(abandoned)}});
    if (next.from_base && (absl::IsAborted(written) || damaged)) {
      progress_->from_base = false;
      LogWarning("slime_base_not_used", {{"version", number}, {"reason", Message(written)}});
      return true;
    }
    if (absl::IsAborted(written) && offered->log->Newest()->version > next.version->version) {
      LogInfo("slime_version_skipped", {{"version", number}, {"reason", Message(written)}});
      return true;
    }
    return written;
  }
  DWS_RETURN_IF_ERROR(Report());
  return true;
}

// 6. Forgets everything about the folder; the next round reads it again.
void SlimePublisher::ForgetFolder() {
  if (const auto other = progress_->folder.OtherStream(); other.ok() && !other->empty()) {
    lost_ = {.state = progress_->writer.state(), .to = *other};
  }
  progress_.reset();
}

Status SlimePublisher::Adopt(const RankStatePtr& state) {
  progress_.reset();
  if (lost_.state != state) lost_ = {};
  {
    MutexLock lock(mutex_);
    view_.newest.reset();
  }
  DWS_ASSIGN_OR_RETURN(SlimeWriter writer,
                       SlimeWriter::Create(files_,
                                           {.root = options_.dir.root,
                                            .encoding = options_.dir.encoding,
                                            .checksum = options_.dir.checksum,
                                            .pool = &pool_,
                                            .side_files = options_.base.side_files},
                                           state, [this] { return loop_.wanted(); }));
  DWS_RETURN_IF_ERROR(CheckTensors(state->layout()));
  SlimeFolder folder(files_, options_.dir.root, *state);
  DWS_RETURN_IF_ERROR(folder.Take(lost_.to));
  // Removes old versions here too: the first version is a full one, and versions that are no longer
  // kept may fill the disk.
  Retire(folder);
  LogDebug("slime_dir_taken", {{"folder", folder.root()}, {"newest", folder.newest()}});
  if (const WeightVersion newest(folder.newest()); newest > WeightVersion(0)) {
    // It may have been written by a sender that was stopped before the command had ended.
    DWS_RETURN_IF_ERROR(RunAfterWrite(newest));
    MutexLock lock(mutex_);
    view_.newest = newest;
  }
  const bool from_base = options_.dir.from_base && folder.newest() == 0;
  progress_ = std::make_unique<Progress>(std::move(writer), std::move(folder));
  progress_->from_base = from_base;
  return OkStatus();
}

Status SlimePublisher::CheckTensors(const RankLayout& layout) const {
  const auto& tensors = options_.base.tensors;
  const auto missing = std::find_if(tensors.begin(), tensors.end(), [&](const std::string& name) {
    return !layout.Find(name, 0).has_value();
  });
  if (missing == tensors.end()) return OkStatus();
  return FailedPreconditionError(
      "the trainer has not registered tensor '{}', which the checkpoint of --slime-checkpoint has: "
      "readers would lose it with the first full version; register it under that name, or name the "
      "checkpoint that readers start from",
      *missing);
}

Result<SlimePublisher::Next> SlimePublisher::ChooseNext() const {
  const DeltaLog& log = *progress_->writer.state()->log;
  const RetainedVersionPtr newest = log.Newest();
  const std::optional<WeightVersion> last = progress_->last;
  if (newest == nullptr || last == newest->version) return Next{};
  DWS_CHECK(!last.has_value() || *last < newest->version);
  if (last.has_value()) {
    const auto chain = log.Chain(*last, newest->version);
    if (chain.ok() && chain->front()->version.value() == last->value() + 1) {
      return Next{.version = chain->front(), .full = FullDue()};
    }
    if (!log.HasFull(*last, newest->version)) {
      LogWarning("slime_chain_broken",
                 {{"after", last->value()},
                  {"version", newest->version.value()},
                  {"reason", chain.ok() ? "the trainer left a number out"
                                        : std::string(Message(chain.status()))}});
    }
  }
  if (progress_->from_base) {
    if (RetainedVersionPtr first = log.Find(WeightVersion(1)); first != nullptr) {
      return Next{.version = std::move(first), .full = false, .from_base = true};
    }
  }
  // 4. Readers that have the folder's newest version would never see an older one.
  if (newest->version.value() <= progress_->folder.newest()) {
    return FailedPreconditionError(
        "{} has version {} already, the trainer is at version {}: publishing continues with "
        "version {}; for readers to follow from here, empty the folder",
        progress_->folder.root(), progress_->folder.newest(), newest->version.value(),
        progress_->folder.newest() + 1);
  }
  if (progress_->damaged == newest->version) {
    return DataLossError(
        "version {} cannot be published: the sender's memory is damaged; the next version is "
        "tried, "
        "`dwsctl verify` says which tensors",
        newest->version.value());
  }
  return Next{.version = newest, .full = true};
}

bool SlimePublisher::FullDue() const {
  return options_.dir.keep > 0 && progress_->folder.DeltasSinceFull() >= options_.dir.keep;
}

Status SlimePublisher::WriteVersion(const Next& next) {
  const WeightVersion version = next.version->version;
  const auto may_publish = [this] { return progress_->folder.CheckOwned(); };
  if (next.full && std::exchange(progress_->from_base, false)) {
    LogWarning("slime_base_not_used",
               {{"version", version.value()},
                {"reason", "only version 1 follows the base, and it is not retained"}});
  }
  DWS_ASSIGN_OR_RETURN(const uint64_t bytes,
                       next.from_base ? WriteFromBase(next.version, may_publish)
                       : next.full    ? progress_->writer.WriteFull(next.version, may_publish)
                                      : progress_->writer.WriteDelta(next.version, may_publish));
  progress_->from_base = false;
  progress_->folder.Add(version.value(), next.full);
  NoteWritten(version, next.full, bytes);
  return OkStatus();
}

Result<uint64_t> SlimePublisher::WriteFromBase(const RetainedVersionPtr& version,
                                               std::function<Status()> may_publish) {
  const auto base = OpenBaseWeights(options_.dir.checkpoint, progress_->writer.state()->layout());
  if (!base.ok()) return AbortedError("{}", Message(base.status()));
  return progress_->writer.WriteFromBase(version, *base, std::move(may_publish));
}

void SlimePublisher::NoteWritten(WeightVersion version, bool full, uint64_t bytes) {
  DWS_CHECK(!progress_->last.has_value() || *progress_->last < version);
  DWS_CHECK(!progress_->unreported.has_value());
  progress_->last = version;
  progress_->unreported = Unreported{.version = version, .full = full, .bytes = bytes};
}

Status SlimePublisher::RunAfterWrite(WeightVersion version) const {
  const Status reported = Annotate(
      options_.after_write.Run(fmt::to_string(version.value()), limits::kSharedHookDeadline,
                               [this] { return loop_.wanted(); }),
      fmt::format("after version {}", version.value()));
  // A command that was ended because the sender stops has not failed: it runs after the next start.
  if (reported.ok() || options_.dir.after_write_required || !loop_.wanted()) return reported;
  LogWarning("slime_after_write_failed",
             {{"version", version.value()}, {"reason", Message(reported)}});
  return OkStatus();
}

void SlimePublisher::Retire(SlimeFolder& folder) const {
  const Status retired = folder.Retire(options_.dir.keep);
  if (!retired.ok()) LogWarning("slime_not_retired", {{"reason", Message(retired)}});
}

Status SlimePublisher::Report() {
  if (!progress_->unreported.has_value()) return OkStatus();
  const Unreported& one = *progress_->unreported;
  DWS_RETURN_IF_ERROR(RunAfterWrite(one.version));
  LogInfo("slime_published",
          {{"version", one.version.value()}, {"full", one.full}, {"bytes", one.bytes}});
  {
    MutexLock lock(mutex_);
    view_.newest = one.version;
    ++view_.versions;
    view_.fulls += one.full ? 1 : 0;
    view_.bytes += one.bytes;
  }
  progress_->unreported.reset();
  Retire(progress_->folder);
  return OkStatus();
}

}  // namespace dws
