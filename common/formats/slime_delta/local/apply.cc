// The numbers refer to the steps in apply.h.
#include "common/formats/slime_delta/local/apply.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/formats/checkpoint/settled.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/fit.h"
#include "common/formats/slime_delta/local/write_down.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

using safetensors::CheckpointTensor;

// A version, and the folder that it was found in.
struct OpenedVersion {
  HeldFolder versions;
  VersionFolder version;
};

Result<OpenedVersion> OpenVersion(const std::string& path, const HeldFolder::OnAccess& on_access,
                                  const safetensors::Checkpoint& local) {
  const size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  const std::optional<uint64_t> number = ParseVersionFolderName(name);
  if (!number.has_value()) {
    return InvalidArgumentError("expected a version folder, as weight_v000001, found {}", path);
  }
  DWS_ASSIGN_OR_RETURN(
      HeldFolder versions,
      HeldFolder::Open(slash == std::string::npos ? "." : path.substr(0, slash), on_access));
  Result<VersionFolder> version = VersionFolder::Open(versions, *number, local);
  if (absl::IsNotFound(version.status())) {
    return UnavailableError("{}: it is not published yet", Message(version.status()));
  }
  DWS_RETURN_IF_ERROR(version.status());
  return OpenedVersion{.versions = std::move(versions), .version = *std::move(version)};
}

// Returns whether another program has brought the checkpoint to a later version since our change to
// version `ours` began.
Result<bool> Overtaken(FileSystem& files, const std::string& folder, uint64_t ours) {
  DWS_ASSIGN_OR_RETURN(const uint64_t version, ReadState(files, folder));
  return version > ours;
}

// Step 3 of a replacement that a dead process began. The files cannot be opened before.
Status CompleteMoves(FileSystem& files, const std::string& folder) {
  DWS_ASSIGN_OR_RETURN(const std::optional<LocalDigests> after, FindReplacement(files, folder));
  if (!after.has_value()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(const checkpoint::KeptLocks locks,
                       checkpoint::LockOutReceiver(files, folder));
  DWS_ASSIGN_OR_RETURN(const bool overtaken, Overtaken(files, folder, after->version));
  if (overtaken) return RemoveRedo(files, folder, after->version);
  return MoveIn(files, folder, after->version);
}

LineageStep StepOf(const VersionFolder& version, bool full) {
  return {.version = version.index().version,
          .applied = {.identity = version.identity(), .index = version.index_stamp()},
          .stream = version.index().Extra(kStreamKey),
          .name = version.index().name,
          .full = full};
}

}  // namespace

LocalCheckpoint::LocalCheckpoint(FileSystem& files, ThreadPool& pool, std::string folder,
                                 ApplyOptions options, checkpoint::KeptLocks locks,
                                 safetensors::Checkpoint checkpoint)
    : files_(files),
      pool_(pool),
      folder_(std::move(folder)),
      options_(std::move(options)),
      locks_(std::move(locks)),
      checkpoint_(std::move(checkpoint)),
      run_check_(checkpoint_) {}

std::string LocalCheckpoint::contents() const {
  std::string hash;
  for (const auto& [name, digest] : digests_.tensors) ExtendChain(hash, name + " " + digest);
  return hash;
}

bool LocalCheckpoint::in_place() const {
  std::error_code ignored;
  const auto& files = checkpoint_.files();
  return std::filesystem::exists(checkpoint::SyncFolder(folder_), ignored) &&
         std::all_of(files.begin(), files.end(), [](const auto& file) {
           return file.mapping.in_place() && file.mapping.CheckIntact().ok();
         });
}

Result<std::unique_ptr<LocalCheckpoint>> LocalCheckpoint::Open(FileSystem& files, ThreadPool& pool,
                                                               const std::string& folder,
                                                               const ApplyOptions& options) {
  DWS_RETURN_IF_ERROR(CompleteMoves(files, folder));
  DWS_ASSIGN_OR_RETURN(checkpoint::KeptCheckpoint kept, checkpoint::OpenKept(files, folder));
  std::unique_ptr<LocalCheckpoint> local(new LocalCheckpoint(
      files, pool, folder, options, std::move(kept.locks), std::move(kept.opened)));
  DWS_RETURN_IF_ERROR(local->Recover());
  return local;
}

LocalCheckpoint::Stamps LocalCheckpoint::StampsNow() const {
  Stamps stamps;
  const auto add = [&](const std::string& path) {
    const auto stamp = StampAt({.folder_fd = AT_FDCWD, .name = path, .path = path});
    stamps[path] = stamp.ok() ? std::optional(*stamp) : std::nullopt;
  };
  for (const safetensors::CheckpointFile& file : checkpoint_.files()) add(file.mapping.path());
  add(folder_ + "/" + safetensors::kIndexFile);
  add(StatePath(folder_));
  add(DigestsPath(folder_));
  return stamps;
}

void LocalCheckpoint::Release() {
  if (locks_.work == nullptr) return;
  released_ = StampsNow();
  locks_.work.reset();
}

Status LocalCheckpoint::Retake() {
  if (locks_.work != nullptr) return OkStatus();
  if (!in_place()) {
    return AbortedError("{}: other files are in its place: open it again", folder_);
  }
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> work, checkpoint::LockForWork(files_, folder_));
  DWS_RETURN_IF_ERROR(CheckStamps(released_));
  locks_.work = std::move(work);
  return OkStatus();
}

Status LocalCheckpoint::CheckStamps(const Stamps& stamps) const {
  for (const auto& [path, stamp] : StampsNow()) {
    if (stamps.at(path) == stamp) continue;
    return AbortedError("{}: another program has changed it ({}): open it again", folder_, path);
  }
  return OkStatus();
}

Status LocalCheckpoint::Recover() {
  DWS_ASSIGN_OR_RETURN(std::optional<LocalDigests> after, FindReplacement(files_, folder_));
  if (after.has_value()) return FinishReplacement(*std::move(after));
  DWS_RETURN_IF_ERROR(RemoveStaged(files_, folder_));
  DWS_ASSIGN_OR_RETURN(const std::optional<VersionFolder> redo, OpenRedo(files_, folder_));
  if (!redo.has_value()) {
    DWS_RETURN_IF_ERROR(LoadDigests());
    return options_.verify_all ? Verify() : OkStatus();
  }
  // The digests are those of before or after the change. In both cases Complete makes them those of
  // after.
  DWS_ASSIGN_OR_RETURN(std::optional<LocalDigests> digests, ReadDigests(files_, folder_));
  if (!digests.has_value()) {
    return DataLossError("{}: a change was begun, and the digests from before it are lost",
                         checkpoint::SyncFolder(folder_));
  }
  DWS_ASSIGN_OR_RETURN(const bool overtaken, Overtaken(files_, folder_, redo->index().version));
  if (overtaken) {
    DWS_RETURN_IF_ERROR(RemoveRedo(files_, folder_, redo->index().version));
    return LoadDigests();
  }
  digests_ = *std::move(digests);
  DWS_RETURN_IF_ERROR(Complete(*redo, ReplayCheck::kDigests));
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
  DWS_RETURN_IF_ERROR(checkpoint_.CheckIntact());
  return WriteDigests(files_, folder_, digests_);
}

LocalDigests LocalCheckpoint::ComputeDigests(uint64_t version) const {
  const std::vector<CheckpointTensor>& tensors = checkpoint_.tensors();
  std::vector<std::string> texts(tensors.size());
  pool_.ParallelFor(tensors.size(), [&](size_t index, size_t) {
    texts[index] = ChecksumOf(checkpoint_, tensors[index], ChecksumFormat::kXxh3);
  });
  LocalDigests digests{.version = version};
  if (version == 0) digests.lineage.since = 0;
  for (size_t i = 0; i < tensors.size(); ++i) digests.tensors[tensors[i].name] = texts[i];
  return digests;
}

Status LocalCheckpoint::Verify() const {
  DWS_CHECK(locks_.work != nullptr);
  const LocalDigests found = ComputeDigests(digests_.version);
  DWS_RETURN_IF_ERROR(checkpoint_.CheckIntact());
  std::vector<std::string> damaged;
  for (const auto& [name, digest] : found.tensors) {
    const auto expected = digests_.tensors.find(name);
    if (expected == digests_.tensors.end() || expected->second != digest) damaged.push_back(name);
  }
  for (const auto& [name, digest] : digests_.tensors) {
    if (!found.tensors.contains(name)) damaged.push_back(name);
  }
  return CheckNoneDamaged(checkpoint_, digests_.version, std::move(damaged));
}

Status LocalCheckpoint::Refuse(const std::string& why, std::optional<int64_t> other_ns) {
  digests_.lineage.refused = why;
  digests_.lineage.other_ns = other_ns;
  DWS_RETURN_IF_ERROR(Annotate(WriteDigests(files_, folder_, digests_), why));
  return FailedPreconditionError("{}", why);
}

Status LocalCheckpoint::CheckStream(const VersionFolder& version) {
  const std::string& here = digests_.lineage.stream;
  const std::string stream = version.index().Extra(kStreamKey);
  if (here.empty() || stream == here) return OkStatus();
  return Refuse(
      fmt::format("version {} is of {}, version {} here is of stream {}: the trainer has begun "
                  "another run; nothing is applied until it publishes a full checkpoint of a "
                  "later version, or its base is put in the place of {}, without .weight_sync",
                  VersionText(version.index().version),
                  stream.empty() ? "another writer" : "stream " + stream,
                  VersionText(digests_.version), here, folder_),
      version.index_stamp().modified_ns);
}

Status LocalCheckpoint::CheckBase(const VersionFolder& version, const HeldFolder& versions) const {
  const std::string& base = version.index().delta->base_name;
  if (base.empty()) return OkStatus();
  std::string here = digests_.lineage.name;
  if (here.empty()) {
    const auto there =
        ReadVersionIndex(files_, versions.path() + "/" + VersionFolderName(digests_.version),
                         IndexLimits(checkpoint_));
    if (there.ok()) here = there->name;
  }
  // If the name is not known, for example that of a base, the tensors' digests decide.
  if (here.empty() || here == base) return OkStatus();
  return FailedPreconditionError(
      "version {} is a delta of '{}', and version {} is '{}': the numbers of the folders are not "
      "the order of the versions; number them as each names its base",
      VersionText(version.index().version), base, VersionText(digests_.version), here);
}

Status LocalCheckpoint::CheckRun(const std::string& versions_folder) {
  DWS_ASSIGN_OR_RETURN(const HeldFolder versions,
                       HeldFolder::Open(versions_folder, options_.on_access));
  return CheckRun(versions).status();
}

Result<bool> LocalCheckpoint::CheckRun(const HeldFolder& versions) {
  Lineage& lineage = digests_.lineage;
  if (!lineage.refused.empty()) return FailedPreconditionError("{}", lineage.refused);
  DWS_ASSIGN_OR_RETURN(RunFinding finding, run_check_.Look(versions, digests_));
  // Bytes that are missing were read as zeros, and a refusal is recorded.
  DWS_RETURN_IF_ERROR(checkpoint_.CheckIntact());
  std::optional<int64_t> other_ns;
  if (finding.verdict == RunVerdict::kOther || finding.verdict == RunVerdict::kUnproved) {
    DWS_ASSIGN_OR_RETURN(other_ns, RunCheck::NewestOther(versions, digests_));
  }
  if (finding.verdict == RunVerdict::kOther) return Refuse(finding.why, other_ns);
  bool news = false;
  if (finding.adopted.has_value()) {
    lineage.chain = finding.adopted->identity;
    lineage.applied[digests_.version] = *std::move(finding.adopted);
    news = true;
  }
  const bool proved = finding.verdict == RunVerdict::kSame;
  if (std::string doubted = proved ? "" : finding.why;
      doubted != lineage.doubted && finding.verdict != RunVerdict::kSilent) {
    lineage.doubted = std::move(doubted);
    lineage.other_ns = other_ns;
    news = true;
  }
  if (news) DWS_RETURN_IF_ERROR(WriteDigests(files_, folder_, digests_));
  if (finding.verdict != RunVerdict::kUnproved) return finding.local_there;
  return FailedPreconditionError("{}", lineage.doubted);
}

Result<std::optional<int64_t>> LocalCheckpoint::OtherRunSince(const std::string& versions_folder,
                                                              bool look) const {
  const std::optional<int64_t> known = digests_.lineage.other_ns;
  if (!look) return known;
  DWS_ASSIGN_OR_RETURN(const HeldFolder versions,
                       HeldFolder::Open(versions_folder, options_.on_access));
  DWS_ASSIGN_OR_RETURN(const std::optional<int64_t> seen,
                       RunCheck::NewestOther(versions, digests_));
  return std::max(known, seen);  // nullopt compares less than any value
}

Result<ApplyReport> LocalCheckpoint::Apply(const std::string& version_folder) {
  DWS_CHECK(locks_.work != nullptr);
  if (halfway_) {
    return FailedPreconditionError("{}: a change was begun and failed: open it again", folder_);
  }
  if (!in_place()) {
    return FailedPreconditionError("{}: other files are in its place: open it again", folder_);
  }
  DWS_ASSIGN_OR_RETURN(const OpenedVersion opened,
                       OpenVersion(version_folder, options_.on_access, checkpoint_));
  const VersionFolder& version = opened.version;
  DWS_ASSIGN_OR_RETURN(const ChainStep step, NextStep(digests_.version, version.index()));  // 1
  BaseProof proof = BaseProof::kNotNeeded;
  unproved_ = false;
  if (step != ChainStep::kReset) {  // 2
    DWS_RETURN_IF_ERROR(CheckStream(version));
    DWS_ASSIGN_OR_RETURN(const bool base_there, CheckRun(opened.versions));
    if (step == ChainStep::kApply) {
      DWS_RETURN_IF_ERROR(CheckBase(version, opened.versions));
      const DeltaToProve delta = {version, digests_, checkpoint_, opened.versions.path(),
                                  base_there};
      proof = ProofOf(delta);
      const Status proved = CheckProof(proof, options_.proof, delta);
      unproved_ = !proved.ok();
      DWS_RETURN_IF_ERROR(proved);
    }
  }
  DWS_RETURN_IF_ERROR(version.CheckUnchanged());
  DWS_RETURN_IF_ERROR(opened.versions.CheckUnchanged());
  if (step == ChainStep::kApplied) return ApplyReport{.version = digests_.version};

  if (step == ChainStep::kReset) {
    DWS_ASSIGN_OR_RETURN(TensorChange change, CompareTensors(version, checkpoint_));
    if (change.any()) return Replace(version, std::move(change));
  }
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<VersionWriter> redo,
                       BeginRedo(files_, folder_, StepOf(version, step == ChainStep::kReset),
                                 EncodingOfRedo(version.index())));
  const Stamps before = StampsNow();
  const bool verify = step == ChainStep::kApply && options_.verify_all;
  const Status written = WriteDown({.version = version,
                                    .checkpoint = checkpoint_,
                                    .digests = verify ? &digests_.tensors : nullptr},
                                   pool_, *redo);  // 3, 4
  // Check this first: an error that comes from a mixture of two folders must not be reported.
  DWS_RETURN_IF_ERROR(version.CheckUnchanged());
  DWS_RETURN_IF_ERROR(written);
  DWS_RETURN_IF_ERROR(CheckStamps(before));
  DWS_FAILPOINT("slime.apply.before_intent");
  halfway_ = true;
  DWS_ASSIGN_OR_RETURN(const VersionSummary summary, redo->Finish());  // 5
  DWS_FAILPOINT("slime.apply.after_intent");
  DWS_ASSIGN_OR_RETURN(const std::optional<VersionFolder> marked, OpenRedo(files_, folder_));
  if (!marked.has_value()) return InternalError("{}: the redo record is missing", folder_);
  DWS_RETURN_IF_ERROR(Complete(*marked, ReplayCheck::kNone));  // 6
  halfway_ = false;
  return ApplyReport{.version = digests_.version,
                     .applied = true,
                     .tensor_count = summary.tensor_count,
                     .proof = proof};
}

Result<ApplyReport> LocalCheckpoint::Replace(const VersionFolder& version, TensorChange change) {
  LocalDigests after{.version = version.index().version,
                     .lineage = After(digests_.lineage, StepOf(version, true))};
  ApplyReport report{.version = after.version, .applied = true, .change = std::move(change)};
  for (const VersionEntry& entry : version.entries()) {
    const auto before = digests_.tensors.find(entry.name);
    if (before == digests_.tensors.end() || before->second != entry.digest) ++report.tensor_count;
    after.tensors[entry.name] = entry.digest;
  }
  DWS_RETURN_IF_ERROR(StageReplacement(files_, folder_, version, checkpoint_));
  halfway_ = true;
  DWS_RETURN_IF_ERROR(RecordReplacement(files_, folder_, *version.checkpoint(), after));
  DWS_RETURN_IF_ERROR(MoveIn(files_, folder_, after.version));
  DWS_ASSIGN_OR_RETURN(checkpoint_, safetensors::Checkpoint::Open(folder_, FileAccess::kWritable));
  DWS_RETURN_IF_ERROR(FinishReplacement(std::move(after)));
  halfway_ = false;
  return report;
}

Status LocalCheckpoint::FinishReplacement(LocalDigests after) {
  digests_ = std::move(after);
  run_check_.Forget();
  DWS_RETURN_IF_ERROR(Verify());
  DWS_RETURN_IF_ERROR(WriteDigests(files_, folder_, digests_));
  DWS_RETURN_IF_ERROR(WriteState(files_, folder_, digests_.version));
  return RemoveRedo(files_, folder_, digests_.version);
}

Status LocalCheckpoint::Complete(const VersionFolder& redo, ReplayCheck check) {
  const uint64_t version = redo.index().version;
  DWS_ASSIGN_OR_RETURN(LineageStep step, RedoStep(redo));
  DWS_RETURN_IF_ERROR(Replay(redo, checkpoint_, pool_, check));
  for (const VersionEntry& entry : redo.entries()) digests_.tensors[entry.name] = entry.digest;
  // A delta continues the chain, so the comparisons of run_check_ stay valid.
  if (step.full) run_check_.Forget();
  if (digests_.version != version) {  // equal when a recovery repeats this
    digests_.lineage = After(std::move(digests_.lineage), std::move(step));
    digests_.version = version;
  }
  DWS_RETURN_IF_ERROR(WriteDigests(files_, folder_, digests_));
  DWS_FAILPOINT("slime.apply.after_digests");
  DWS_RETURN_IF_ERROR(WriteState(files_, folder_, version));
  DWS_FAILPOINT("slime.apply.after_state");
  return RemoveRedo(files_, folder_, version);
}

}  // namespace dws::slime
