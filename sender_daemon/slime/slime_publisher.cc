// The numbers are the header's.
#include "sender_daemon/slime/slime_publisher.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/log.h"

namespace dws {

Result<std::map<std::string, std::vector<std::byte>>> ReadSideFiles(FileSystem& files,
                                                                    const std::string& checkpoint) {
  std::map<std::string, std::vector<std::byte>> found;
  const auto names = files.List(checkpoint);
  if (!names.ok()) {
    return InvalidArgumentError("--slime-checkpoint: {}", Message(names.status()));
  }
  uint64_t left = kSlimeSideBytesMax;
  for (const std::string& name : *names) {
    const std::string path = checkpoint + "/" + name;
    std::error_code ignored;
    if (name.starts_with('.') || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json") ||
        !std::filesystem::is_regular_file(path, ignored)) {
      continue;
    }
    auto bytes = files.ReadFile(path, left);
    if (!bytes.ok()) {
      return InvalidArgumentError(
          "--slime-checkpoint: {}; files beside the weights may have {} bytes in all, remove what "
          "is no part of the model",
          Message(bytes.status()), kSlimeSideBytesMax);
    }
    left -= bytes->size();
    found[name] = *std::move(bytes);
  }
  return found;
}

SlimePublisher::SlimePublisher(Options options, FileSystem& files)
    : options_(std::move(options)),
      files_(files),
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
  DWS_ASSIGN_OR_RETURN(const Next next, ChooseNext());
  if (next.version == nullptr) return false;
  const uint64_t number = next.version->version.value();
  DWS_RETURN_IF_ERROR(progress_->folder.Begin(number));
  const Status written = WriteVersion(next);
  if (absl::IsAlreadyExists(written)) {  // somebody else was quicker
    progress_->folder.Leave(number);
    return written;
  }
  if (!written.ok()) {
    if (absl::IsAborted(written) || absl::IsDataLoss(written)) progress_->last.reset();  // 2
    if (absl::IsDataLoss(written) && next.full) {
      progress_->damaged = next.version->version;
      if (options_.on_damage) options_.on_damage(offered);
    }
    // It may be another sender's by now.
    if (!progress_->folder.CheckOwned().ok()) return written;
    // 3. Where the disk is full, half a version is what fills it.
    const Status discarded = progress_->folder.Discard(number);
    if (!discarded.ok()) {
      LogWarning("slime_not_discarded", {{"reason", Message(discarded)}});
    }
    return written;
  }
  const Status retired = progress_->folder.Retire(options_.dir.keep);
  if (!retired.ok()) LogWarning("slime_not_retired", {{"reason", Message(retired)}});
  return true;
}

Status SlimePublisher::Adopt(const RankStatePtr& state) {
  progress_.reset();
  {
    MutexLock lock(mutex_);
    view_.newest.reset();
  }
  DWS_ASSIGN_OR_RETURN(SlimeWriter writer,
                       SlimeWriter::Create(files_,
                                           {.root = options_.dir.root,
                                            .encoding = options_.dir.encoding,
                                            .checksum = options_.dir.checksum,
                                            .side_files = options_.side_files},
                                           state, [this] { return loop_.wanted(); }));
  SlimeFolder folder(files_, options_.dir.root, *state);
  DWS_RETURN_IF_ERROR(folder.Take());
  LogInfo("slime_dir_taken", {{"folder", folder.root()}, {"newest", folder.newest()}});
  if (folder.newest() > 0) {
    MutexLock lock(mutex_);
    view_.newest = WeightVersion(folder.newest());
  }
  progress_ = std::make_unique<Progress>(std::move(writer), std::move(folder));
  return OkStatus();
}

Result<SlimePublisher::Next> SlimePublisher::ChooseNext() const {
  const DeltaLog& log = *progress_->writer.state()->log;
  const RetainedVersionPtr newest = log.Newest();
  const std::optional<WeightVersion> last = progress_->last;
  if (newest == nullptr || last == newest->version) return Next{};
  if (last.has_value()) {
    const auto chain = log.Chain(*last, newest->version);
    if (chain.ok() && chain->front()->version.value() == last->value() + 1) {
      return Next{.version = chain->front()};
    }
    LogWarning("slime_chain_broken",
               {{"after", last->value()},
                {"version", newest->version.value()},
                {"reason", chain.ok() ? "the trainer left a number out"
                                      : std::string(Message(chain.status()))}});
  }
  // 4. Readers that have the folder's newest version would never see an older one.
  if (newest->version.value() <= progress_->folder.newest()) {
    return FailedPreconditionError(
        "{} has version {} already, the trainer is at version {}: publishing goes on with version "
        "{}; for readers to follow from here, empty the folder and restart this sender",
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

Status SlimePublisher::WriteVersion(const Next& next) {
  const WeightVersion version = next.version->version;
  const auto may_publish = [this] { return progress_->folder.CheckOwned(); };
  DWS_ASSIGN_OR_RETURN(const uint64_t bytes,
                       next.full ? progress_->writer.WriteFull(next.version, may_publish)
                                 : progress_->writer.WriteDelta(next.version, may_publish));
  progress_->last = version;
  progress_->folder.Add(version.value(), next.full);
  {
    MutexLock lock(mutex_);
    view_.newest = version;
    ++view_.versions;
    view_.fulls += next.full ? 1 : 0;
    view_.bytes += bytes;
  }
  LogInfo("slime_published", {{"version", version.value()}, {"full", next.full}, {"bytes", bytes}});
  return OkStatus();
}

}  // namespace dws
