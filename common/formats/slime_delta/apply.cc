// The numbers are the header's.
#include "common/formats/slime_delta/apply.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "common/base/failpoint.h"
#include "common/formats/slime_delta/redo.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

using safetensors::CheckpointTensor;

// "a, b, c and 4 more".
std::string Names(std::vector<std::string> names) {
  const size_t count = names.size();
  if (count > limits::kTensorsNamedMax) names.resize(limits::kTensorsNamedMax);
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (count > names.size()) text += fmt::format(" and {} more", count - names.size());
  return text;
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// What is wrong with one tensor of a version.
enum class Verdict : uint8_t { kGood, kMissing, kOtherBase };

struct Outcome {
  Verdict verdict = Verdict::kGood;
  Status status;
};

// Step 4 of a changed tensor.
Outcome WriteDownEntry(const VersionEntry& entry, const DeltaDescription& delta,
                       const CheckpointTensor* tensor, VersionWriter& redo) {
  if (tensor == nullptr) return {.verdict = Verdict::kMissing};
  Result<std::vector<std::byte>> payload =
      DecodeEntry(delta.encoding, entry.bytes, tensor->bytes.size());
  if (!payload.ok()) return {.status = payload.status()};
  std::vector<std::byte> after(tensor->bytes.begin(), tensor->bytes.end());
  const Status applied = ApplyPayload(delta.encoding, *payload, after);
  if (!applied.ok()) return {.status = applied};
  if (ChecksumText(delta.checksum, after) == entry.digest) {
    return {.status = redo.Add(entry.name, tensor->bytes, after)};
  }
  const bool done = ChecksumText(delta.checksum, tensor->bytes) == entry.digest;
  return {.verdict = done ? Verdict::kGood : Verdict::kOtherBase};
}

// The same of a full checkpoint's.
Outcome WriteDownFull(const CheckpointTensor& after, const CheckpointTensor* tensor,
                      VersionWriter& redo) {
  if (tensor == nullptr || tensor->dtype != after.dtype || tensor->shape != after.shape) {
    return {.verdict = Verdict::kMissing};
  }
  return {.status = redo.Add(after.name, tensor->bytes, after.bytes)};
}

Status Judge(const std::vector<Outcome>& outcomes, const std::vector<std::string>& names,
             const std::string& version) {
  std::vector<std::string> missing;
  std::vector<std::string> other_base;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].status.ok()) {
      return Annotate(outcomes[i].status,
                      fmt::format("version {}, tensor '{}'", version, names[i]));
    }
    if (outcomes[i].verdict == Verdict::kMissing) missing.push_back(names[i]);
    if (outcomes[i].verdict == Verdict::kOtherBase) other_base.push_back(names[i]);
  }
  if (!missing.empty()) {
    return FailedPreconditionError(
        "version {}: the local checkpoint has not these tensors, or of another shape: {}", version,
        Names(missing));
  }
  if (!other_base.empty()) {
    return FailedPreconditionError(
        "version {}: not a delta of what is here: these tensors would not come to the digests it "
        "states: {}",
        version, Names(other_base));
  }
  return OkStatus();
}

}  // namespace

LocalCheckpoint::LocalCheckpoint(FileSystem& files, ThreadPool& pool, std::string folder,
                                 ApplyOptions options, std::unique_ptr<FileLock> lock,
                                 safetensors::Checkpoint checkpoint)
    : files_(files),
      pool_(pool),
      folder_(std::move(folder)),
      options_(options),
      lock_(std::move(lock)),
      checkpoint_(std::move(checkpoint)) {}

bool LocalCheckpoint::in_place() const {
  std::error_code ignored;
  const auto& files = checkpoint_.files();
  return std::filesystem::exists(SyncFolder(folder_), ignored) &&
         std::all_of(files.begin(), files.end(),
                     [](const auto& file) { return file.mapping.in_place(); });
}

Result<std::unique_ptr<LocalCheckpoint>> LocalCheckpoint::Open(FileSystem& files, ThreadPool& pool,
                                                               const std::string& folder,
                                                               const ApplyOptions& options) {
  // First: what is no checkpoint, or is not to be changed, gets no folder of ours.
  DWS_ASSIGN_OR_RETURN(const safetensors::Checkpoint looked, safetensors::Checkpoint::Open(folder));
  DWS_RETURN_IF_ERROR(safetensors::CheckNotLinked(looked));
  DWS_RETURN_IF_ERROR(CheckNoInPlaceRedo(files, folder));
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, LockLocal(files, folder));
  // Who changes it in place holds this, and begins nothing where the folder of ours is.
  DWS_RETURN_IF_ERROR(files.Lock(looked.files()[0].mapping.path()).status());
  DWS_RETURN_IF_ERROR(CheckNoInPlaceRedo(files, folder));
  DWS_ASSIGN_OR_RETURN(safetensors::Checkpoint checkpoint,
                       safetensors::Checkpoint::Open(folder, FileAccess::kWritable));
  std::unique_ptr<LocalCheckpoint> local(
      new LocalCheckpoint(files, pool, folder, options, std::move(lock), std::move(checkpoint)));
  DWS_RETURN_IF_ERROR(local->Recover());
  return local;
}

Status LocalCheckpoint::Recover() {
  DWS_ASSIGN_OR_RETURN(const std::optional<VersionFolder> redo, OpenRedo(files_, folder_));
  if (!redo.has_value()) {
    DWS_RETURN_IF_ERROR(LoadDigests());
    return options_.verify_all ? Verify() : OkStatus();
  }
  // The digests are those of before or of after; Complete makes either those of after.
  DWS_ASSIGN_OR_RETURN(std::optional<LocalDigests> digests, ReadDigests(files_, folder_));
  if (!digests.has_value()) {
    return DataLossError("{}: a change was begun, and the digests from before it are gone",
                         SyncFolder(folder_));
  }
  digests_ = *std::move(digests);
  DWS_RETURN_IF_ERROR(Complete(*redo));
  return options_.verify_all ? Verify() : OkStatus();
}

Status LocalCheckpoint::LoadDigests() {
  DWS_ASSIGN_OR_RETURN(const uint64_t version, ReadState(files_, folder_));
  DWS_ASSIGN_OR_RETURN(std::optional<LocalDigests> digests, ReadDigests(files_, folder_));
  if (digests.has_value() && digests->version == version) {
    digests_ = *std::move(digests);
    return OkStatus();
  }
  digests_ = ComputeDigests(version);
  return WriteDigests(files_, folder_, digests_);
}

LocalDigests LocalCheckpoint::ComputeDigests(uint64_t version) const {
  const std::vector<CheckpointTensor>& tensors = checkpoint_.tensors();
  std::vector<std::string> texts(tensors.size());
  pool_.ParallelFor(tensors.size(), [&](size_t index, size_t) {
    texts[index] = ChecksumText(ChecksumFormat::kXxh3, tensors[index].bytes);
  });
  LocalDigests digests{.version = version};
  for (size_t i = 0; i < tensors.size(); ++i) digests.tensors[tensors[i].name] = texts[i];
  return digests;
}

Status LocalCheckpoint::Verify() const {
  const LocalDigests found = ComputeDigests(digests_.version);
  std::vector<std::string> damaged;
  for (const auto& [name, digest] : found.tensors) {
    const auto expected = digests_.tensors.find(name);
    if (expected == digests_.tensors.end() || expected->second != digest) damaged.push_back(name);
  }
  for (const auto& [name, digest] : digests_.tensors) {
    if (!found.tensors.contains(name)) damaged.push_back(name);
  }
  if (damaged.empty()) return OkStatus();
  return DataLossError("{}: these tensors are not what they were at version {}: {}", folder_,
                       VersionText(digests_.version), Names(damaged));
}

// Step 2, and the same of a version that is here already.
Status LocalCheckpoint::CheckSameRun(const std::string& version_folder,
                                     const VersionFolder& version) const {
  const VersionOrigin& here = digests_.origin;
  const std::string stream = version.index().Extra(kStreamKey);
  if (!stream.empty() && !here.stream.empty() && stream != here.stream) {
    return FailedPreconditionError(
        "{}: is of stream {}, version {} here is of stream {}: the trainer has begun another run; "
        "put its base in the place of {}, without .weight_sync, or have a full checkpoint "
        "published",
        version_folder, stream, VersionText(digests_.version), here.stream, folder_);
  }
  if (here.identity.empty()) return OkStatus();
  std::string identity = version.identity();
  if (version.index().version != digests_.version) {
    const std::string base_folder =
        ParentOf(version_folder) + "/" + VersionFolderName(digests_.version);
    const Result<VersionFolder> base = VersionFolder::Open(files_, base_folder);
    // Gone, as old versions do: step 4 has the last word.
    if (absl::IsNotFound(base.status()) || absl::IsUnavailable(base.status())) return OkStatus();
    if (!base.ok()) {
      return Annotate(base.status(), "looking whether it is the version that was applied here");
    }
    identity = base->identity();
  }
  if (identity == here.identity) return OkStatus();
  return FailedPreconditionError(
      "{}: version {} there is not the one that was applied here: the trainer has begun another "
      "run; put its base in the place of {}, without .weight_sync, or have a full checkpoint "
      "published",
      ParentOf(version_folder), VersionText(digests_.version), folder_);
}

Status LocalCheckpoint::WriteDown(const VersionFolder& version, VersionWriter& redo) const {
  const bool full = !version.index().delta.has_value();
  std::vector<std::string> names;
  if (full) {
    for (const CheckpointTensor& tensor : version.checkpoint()->tensors()) {
      names.push_back(tensor.name);
    }
  } else {
    for (const VersionEntry& entry : version.entries()) names.push_back(entry.name);
  }
  std::vector<Outcome> outcomes(names.size());
  pool_.ParallelFor(names.size(), [&](size_t index, size_t) {
    const CheckpointTensor* const tensor = checkpoint_.Find(names[index]);
    outcomes[index] =
        full ? WriteDownFull(version.checkpoint()->tensors()[index], tensor, redo)
             : WriteDownEntry(version.entries()[index], *version.index().delta, tensor, redo);
  });
  const std::string text = VersionText(version.index().version);
  DWS_RETURN_IF_ERROR(Judge(outcomes, names, text));
  if (!full || names.size() == checkpoint_.tensors().size()) return OkStatus();
  return FailedPreconditionError("version {}: a full checkpoint of {} tensors, here are {}", text,
                                 names.size(), checkpoint_.tensors().size());
}

Result<ApplyReport> LocalCheckpoint::Apply(const std::string& version_folder) {
  if (halfway_) {
    return FailedPreconditionError("{}: a change was begun and failed: open it again", folder_);
  }
  if (!in_place()) {
    return FailedPreconditionError("{}: other files are in its place: open it again", folder_);
  }
  DWS_ASSIGN_OR_RETURN(const VersionFolder version, VersionFolder::Open(files_, version_folder));
  DWS_ASSIGN_OR_RETURN(const ChainStep step, NextStep(digests_.version, version.index()));  // 1
  if (step != ChainStep::kReset) {
    DWS_RETURN_IF_ERROR(CheckSameRun(version_folder, version));  // 2
  }
  if (step == ChainStep::kApplied) return ApplyReport{.version = digests_.version};
  if (step == ChainStep::kApply && options_.verify_all) DWS_RETURN_IF_ERROR(Verify());  // 3

  DWS_ASSIGN_OR_RETURN(
      const std::unique_ptr<VersionWriter> redo,
      BeginRedo(files_, folder_, version.index().version,
                {.identity = version.identity(), .stream = version.index().Extra(kStreamKey)}));
  DWS_RETURN_IF_ERROR(WriteDown(version, *redo));  // 4
  DWS_FAILPOINT("slime.apply.before_intent");
  halfway_ = true;
  DWS_ASSIGN_OR_RETURN(const VersionSummary summary, redo->Finish());  // 5
  DWS_FAILPOINT("slime.apply.after_intent");
  DWS_ASSIGN_OR_RETURN(const std::optional<VersionFolder> marked, OpenRedo(files_, folder_));
  if (!marked.has_value()) return InternalError("{}: the redo record is gone", folder_);
  DWS_RETURN_IF_ERROR(Complete(*marked));  // 6
  halfway_ = false;
  return ApplyReport{
      .version = digests_.version, .applied = true, .tensor_count = summary.tensor_count};
}

Status LocalCheckpoint::CheckApplied(const std::string& version_folder) const {
  DWS_ASSIGN_OR_RETURN(const VersionFolder version, VersionFolder::Open(files_, version_folder));
  return CheckSameRun(version_folder, version);
}

Status LocalCheckpoint::Complete(const VersionFolder& redo) {
  const uint64_t version = redo.index().version;
  DWS_RETURN_IF_ERROR(Replay(redo, checkpoint_, pool_));
  for (const VersionEntry& entry : redo.entries()) digests_.tensors[entry.name] = entry.digest;
  digests_.version = version;
  digests_.origin = RedoOrigin(redo);
  DWS_RETURN_IF_ERROR(WriteDigests(files_, folder_, digests_));
  DWS_FAILPOINT("slime.apply.after_digests");
  DWS_RETURN_IF_ERROR(WriteState(files_, folder_, version));
  DWS_FAILPOINT("slime.apply.after_state");
  return RemoveRedo(files_, folder_, version);
}

}  // namespace dws::slime
