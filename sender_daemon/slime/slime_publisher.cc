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
      member_(files, {.writer = {.root = options_.dir.root,
                                 .encoding = options_.dir.encoding,
                                 .checksum = options_.dir.checksum,
                                 .pool = &pool_},
                      .checkpoint = options_.dir.checkpoint,
                      .base = &options_.base,
                      .wait_max = options_.part_wait_max,
                      .wanted = [this] { return loop_.wanted(); },
                      .on_damage = options_.on_damage}),
      view_{.folder = options_.dir.root},
      loop_({.failed_event = "slime_publish_failed",
             .retry_delay = options_.retry_delay,
             .impatient = [this] { return waits_.load(); },
             .soon = kPartPollMin},
            [this](const RankStatePtr& offered) { return Work(offered); }) {}

SlimeView SlimePublisher::view() const {
  SlimeView view;
  {
    MutexLock lock(mutex_);
    view = view_;
  }
  view.failures = loop_.failures();
  return view;
}

Result<bool> SlimePublisher::Work(const RankStatePtr& offered) {
  if (offered->trainer_rank != TrainerRank(0)) return WorkAsMember(offered);
  waits_ = false;
  if (progress_ == nullptr || progress_->writer.state() != offered) {
    DWS_RETURN_IF_ERROR(Adopt(offered));
  }
  DWS_RETURN_IF_ERROR(Report());
  DWS_RETURN_IF_ERROR(progress_->unfit);
  std::optional<PartsLeader>& leader = progress_->leader;
  Next next = progress_->asked;
  if (leader.has_value() && leader->open()) {
    const Status owned = progress_->folder.CheckOwned();
    if (absl::IsFailedPrecondition(owned)) ForgetFolder();
    DWS_RETURN_IF_ERROR(owned);
  }
  if (!leader.has_value() || !leader->open()) {
    const Result<Next> chosen = ChooseNext();
    if (absl::IsFailedPrecondition(chosen.status())) ForgetFolder();
    DWS_RETURN_IF_ERROR(chosen.status());
    next = *chosen;
    if (next.version == nullptr) {
      if (leader.has_value()) DWS_RETURN_IF_ERROR(leader->Tell(progress_->folder.newest()));
      return false;
    }
    const uint64_t number = next.version->version.value();
    const Result<bool> begun = progress_->folder.Begin(number);
    if (absl::IsFailedPrecondition(begun.status())) ForgetFolder();
    DWS_RETURN_IF_ERROR(begun.status());
    if (!*begun) {
      NoteWritten(next.version->version, progress_->folder.IsFull(number), 0);
      DWS_RETURN_IF_ERROR(Report());
      return true;
    }
  }
  const Result<bool> written = WriteVersion(next);
  waits_ = leader.has_value() && leader->open();
  if (!written.ok()) return waits_ ? written.status() : GiveUp(next, written.status());
  if (!*written) return false;
  DWS_RETURN_IF_ERROR(Report());
  return true;
}

Result<bool> SlimePublisher::GiveUp(const Next& next, const Status& why) {
  const RankStatePtr& state = progress_->writer.state();
  const WeightVersion version = next.version->version;
  const bool damaged = progress_->writer.damaged();
  if (absl::IsAborted(why) || damaged) progress_->last.reset();  // 2
  if (damaged && next.full) {
    progress_->damaged = version;
    if (options_.on_damage) options_.on_damage(state);
  }
  // 3. If the disk is full, perhaps the incomplete version fills it.
  const Status abandoned = progress_->folder.Abandon(version.value());
  if (!abandoned.ok()) LogWarning("slime_not_removed", {{"reason", Message(abandoned)}});
  // The parts too, unless they are those of the sender that has the folder now.
  if (progress_->leader.has_value() && progress_->folder.CheckOwned().ok()) {
    progress_->folder.RemoveUnfinished();
  }
  if (next.from_base && (absl::IsAborted(why) || damaged)) {
    progress_->from_base = false;
    LogWarning("slime_base_not_used", {{"version", version.value()}, {"reason", Message(why)}});
    return true;
  }
  if (progress_->leader.has_value() && absl::IsAborted(why) && next.full) {
    progress_->refused = {version, why};
  }
  if (absl::IsAborted(why) && state->log->Newest()->version > version) {
    LogInfo("slime_version_skipped", {{"version", version.value()}, {"reason", Message(why)}});
    return true;
  }
  return why;
}

// 7.
Result<bool> SlimePublisher::WorkAsMember(const RankStatePtr& offered) {
  progress_.reset();
  const Result<bool> more = member_.Step(offered);
  waits_ = member_.waiting();
  if (const auto published = member_.TakePublished(); published.has_value()) {
    MutexLock lock(mutex_);
    view_.newest = published->version;
    view_.versions += published->ours ? 1 : 0;
    view_.fulls += published->ours && published->full ? 1 : 0;
    view_.bytes += published->bytes;
  }
  return more;
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
  DWS_ASSIGN_OR_RETURN(
      SlimeWriter writer,
      SlimeWriter::Create(
          files_,
          {.root = options_.dir.root,
           .encoding = options_.dir.encoding,
           .checksum = options_.dir.checksum,
           .pool = &pool_,
           .side_files = state->world_size == 1 ? options_.base.side_files
                                                : decltype(BaseCheckpoint::side_files)()},
          state, [this] { return loop_.wanted(); }));
  DWS_RETURN_IF_ERROR(CheckViewTypes(options_.base, state->layout()));
  if (state->world_size == 1) {
    DWS_RETURN_IF_ERROR(CheckTensors(
        [&](const std::string& name) { return state->layout().Find(name, 0).has_value(); }));
  }
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
  if (state->world_size > 1) {
    progress_->leader.emplace(files_,
                              PartsLeader::Options{.root = options_.dir.root,
                                                   .encoding = options_.dir.encoding,
                                                   .checksum = options_.dir.checksum,
                                                   .wait_max = options_.part_wait_max},
                              *state);
  }
  return OkStatus();
}

Status SlimePublisher::CheckTensors(const std::function<bool(const std::string&)>& has) const {
  const auto& tensors = options_.base.tensors;
  const auto missing = std::find_if_not(tensors.begin(), tensors.end(),
                                        [&has](const auto& tensor) { return has(tensor.first); });
  if (missing == tensors.end()) return OkStatus();
  if (!options_.dir.view.empty()) {
    return FailedPreconditionError(
        "the view has no tensor '{}', which the checkpoint of --slime-checkpoint has: readers "
        "would lose it with the first full version; name the checkpoint that engines of this view "
        "load, leave out what it leaves out (except=PATTERN), or, if no recipe makes such a "
        "tensor, register it with the trainer under that name",
        missing->first);
  }
  return FailedPreconditionError(
      "the trainer has not registered tensor '{}', which the checkpoint of --slime-checkpoint has: "
      "readers would lose it with the first full version; register it under that name, or name the "
      "checkpoint that readers start from",
      missing->first);
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
  if (progress_->refused.first == newest->version) return progress_->refused.second;
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

Result<bool> SlimePublisher::WriteVersion(const Next& next) {
  const WeightVersion version = next.version->version;
  uint64_t bytes = 0;
  if (progress_->leader.has_value()) {
    PartsLeader& leader = *progress_->leader;
    if (!leader.open()) DWS_RETURN_IF_ERROR(AskForParts(next));
    const auto parts = leader.Parts();
    // What else goes wrong ends the attempt; its parts are removed.
    if (!absl::IsUnavailable(parts.status()) && (!parts.ok() || parts->has_value())) leader.Close();
    DWS_RETURN_IF_ERROR(parts.status());
    if (!parts->has_value()) return false;
    DWS_RETURN_IF_ERROR(Join(next, **parts));
    bytes = progress_->own_bytes;
  } else {
    const auto may_publish = [this] { return progress_->folder.CheckOwned(); };
    DWS_ASSIGN_OR_RETURN(bytes, WriteOwn(next, {.may_publish = may_publish}));
  }
  progress_->from_base = false;
  progress_->folder.Add(version.value(), next.full);
  if (progress_->leader.has_value()) progress_->folder.RemoveUnfinished();
  NoteWritten(version, next.full, bytes);
  return true;
}

Status SlimePublisher::AskForParts(const Next& next) {
  PartsLeader& leader = *progress_->leader;
  const PartKind kind = next.from_base ? PartKind::kBase
                        : next.full    ? PartKind::kFull
                                       : PartKind::kDelta;
  DWS_RETURN_IF_ERROR(
      leader.Ask(next.version->version, kind, ++attempts_, progress_->folder.newest()));
  const Result<uint64_t> own = WriteOwn(next, {.part = leader.own_part()});
  if (!own.ok()) leader.Close();
  DWS_RETURN_IF_ERROR(own.status());
  progress_->own_bytes = *own;
  progress_->asked = next;
  return OkStatus();
}

Status SlimePublisher::Join(const Next& next, const std::vector<slime::VersionPart>& parts) {
  const auto has = [&](const std::string& name) {
    return std::any_of(parts.begin(), parts.end(), [&](const slime::VersionPart& part) {
      return part.index.weight_map.contains(name);
    });
  };
  // More attempts would write all tensors again, with the same outcome.
  if (next.full || next.from_base) progress_->unfit = CheckTensors(has);
  DWS_RETURN_IF_ERROR(progress_->unfit);
  slime::JoinOptions options{.version = next.version->version.value(),
                             .writer = SlimeWriterName(*progress_->writer.state()),
                             .may_publish = [this] { return progress_->folder.CheckOwned(); }};
  if (next.full) options.side_files = options_.base.side_files;
  const Status joined = slime::JoinParts(files_, options_.dir.root, options, parts).status();
  if (absl::IsInvalidArgument(joined) || absl::IsPermissionDenied(joined)) {
    progress_->unfit = Annotate(joined, "until rank 0's trainer registers again");
  }
  return joined;
}

Result<uint64_t> SlimePublisher::WriteOwn(const Next& next,
                                          const SlimeWriter::Publication& publication) {
  if (next.full && std::exchange(progress_->from_base, false)) {
    LogWarning("slime_base_not_used",
               {{"version", next.version->version.value()},
                {"reason", "only version 1 follows the base, and it is not retained"}});
  }
  if (next.from_base) return WriteFromBase(next.version, publication);
  return next.full ? progress_->writer.WriteFull(next.version, publication)
                   : progress_->writer.WriteDelta(next.version, publication);
}

Result<uint64_t> SlimePublisher::WriteFromBase(const RetainedVersionPtr& version,
                                               const SlimeWriter::Publication& publication) {
  const auto base = OpenBaseWeights(options_.dir.checkpoint, progress_->writer.state()->layout());
  if (!base.ok()) return AbortedError("{}", Message(base.status()));
  return progress_->writer.WriteFromBase(version, *base, publication);
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
