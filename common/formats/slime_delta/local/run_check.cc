// The numbers refer to the list in run_check.h.
#include "common/formats/slime_delta/local/run_check.h"

#include <algorithm>

#include "common/formats/slime_delta/local/write_down.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

// A copy that keeps the times counts as the same file.
bool SameTime(const FileStamp& a, const FileStamp& b) {
  return a.modified_ns == b.modified_ns && a.size_bytes == b.size_bytes;
}

}  // namespace

Result<std::optional<VersionFolder>> RunCheck::OpenIfThere(const HeldFolder& versions,
                                                           uint64_t version) const {
  Result<VersionFolder> opened = VersionFolder::Open(versions, version, checkpoint_);
  if (absl::IsNotFound(opened.status())) return std::optional<VersionFolder>();
  if (!opened.ok()) {
    return Annotate(opened.status(), "checking whether it is the version that was applied here");
  }
  return std::optional<VersionFolder>(*std::move(opened));
}

std::optional<std::string> RunCheck::Differing(const VersionFolder& version,
                                               std::set<std::string>& seen) const {
  const auto& delta = version.index().delta;
  const ChecksumFormat format = delta.has_value() ? delta->checksum : ChecksumFormat::kXxh3;
  for (const VersionEntry& entry : version.entries()) {
    if (!seen.insert(entry.name).second) continue;
    const safetensors::CheckpointTensor* const tensor = checkpoint_.Find(entry.name);
    if (tensor == nullptr || ChecksumOf(checkpoint_, *tensor, format) != entry.digest) {
      return entry.name;
    }
  }
  return std::nullopt;
}

void RunCheck::Forget() {
  compared_.clear();
  proved_.reset();
}

RunFinding RunCheck::Other(const std::string& what) const {
  return {.verdict = RunVerdict::kOther,
          .why = fmt::format(
              "{}: the trainer has begun another run; nothing is applied until it publishes a full "
              "checkpoint of a later version, or its base is put in the place of {}, without "
              ".weight_sync",
              what, checkpoint_.path())};
}

RunFinding RunCheck::NotTheApplied(const HeldFolder& versions, uint64_t version) const {
  return Other(fmt::format("{}: version {} there is not the one that was applied here",
                           versions.path(), VersionText(version)));
}

RunFinding RunCheck::Unproved(const std::string& what) const {
  return {.verdict = RunVerdict::kUnproved,
          .why = fmt::format(
              "{}: the trainer may have begun another run; nothing is applied until the versions "
              "that were applied are there again, a full checkpoint of a later version is "
              "published, or the run's base is put in the place of {}, without .weight_sync",
              what, checkpoint_.path())};
}

Result<std::optional<int64_t>> RunCheck::NewestOther(const HeldFolder& versions,
                                                     const LocalDigests& local) {
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> there, ListVersions(versions));
  std::optional<int64_t> newest;
  for (const uint64_t version : there) {
    if (version > local.version) break;
    DWS_ASSIGN_OR_RETURN(const std::optional<FileStamp> stamp, StampOfVersion(versions, version));
    if (!stamp.has_value()) continue;
    const auto record = local.lineage.applied.find(version);
    if (record != local.lineage.applied.end() && record->second.index == stamp) continue;
    newest = std::max(newest.value_or(stamp->modified_ns), stamp->modified_ns);
  }
  return newest;
}

bool RunCheck::IsCompared(uint64_t version, const FileStamp& stamp) const {
  const auto found = compared_.find(version);
  return found != compared_.end() && found->second == stamp;
}

Result<bool> RunCheck::SomeWrittenAgain(const HeldFolder& versions, const Lineage& lineage,
                                        const std::vector<uint64_t>& there) const {
  for (const uint64_t version : there) {
    const auto record = lineage.applied.find(version);
    if (record == lineage.applied.end()) continue;
    DWS_ASSIGN_OR_RETURN(const std::optional<FileStamp> stamp, StampOfVersion(versions, version));
    if (!stamp.has_value()) continue;  // another process is removing or writing it
    if (SameTime(record->second.index, *stamp)) continue;
    if (!IsCompared(version, *stamp)) return true;
  }
  return false;
}

Result<RunFinding> RunCheck::Look(const HeldFolder& versions, const LocalDigests& local) {
  if (local.version == 0) return RunFinding();  // a base fits any run
  const Lineage& lineage = local.lineage;
  const auto record = lineage.applied.find(local.version);
  const bool remembered = record != lineage.applied.end();
  DWS_ASSIGN_OR_RETURN(const std::optional<FileStamp> stamp,
                       StampOfVersion(versions, local.version));
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> there, ListVersions(versions));
  if (stamp.has_value() && ((remembered && record->second.index == stamp) ||
                            proved_ == std::pair(local.version, *stamp))) {
    // Perhaps another run has written only versions before the local one so far.
    DWS_ASSIGN_OR_RETURN(const bool written_again, SomeWrittenAgain(versions, lineage, there));
    if (!written_again) return RunFinding{.why = {}, .adopted = {}, .local_there = true};
  }
  DWS_ASSIGN_OR_RETURN(RunFinding finding,
                       remembered ? Compare(versions, local, there) : Adopt(versions, local));
  if (finding.verdict != RunVerdict::kSilent) return finding;
  if (!there.empty() && there.back() < local.version) {
    return Unproved(
        fmt::format("{} has versions up to {}, and the local checkpoint is of version "
                    "{}",
                    versions.path(), there.back(), local.version));
  }
  if (!lineage.doubted.empty()) {
    return RunFinding{.verdict = RunVerdict::kUnproved, .why = lineage.doubted};
  }
  return finding;
}

Result<RunFinding> RunCheck::Compare(const HeldFolder& versions, const LocalDigests& local,
                                     const std::vector<uint64_t>& there) {
  const Lineage& lineage = local.lineage;
  std::erase_if(compared_, [&](const auto& one) { return !lineage.applied.contains(one.first); });
  std::optional<std::pair<uint64_t, FileStamp>> newest;  // the newest applied version in the folder
  bool kept = false;                                     // its file is the one that was applied: 1
  bool settled = false;  // so earlier versions are opened only if their file was written again
  for (auto at = there.rbegin(); at != there.rend(); ++at) {
    const auto record = lineage.applied.find(*at);
    if (record == lineage.applied.end()) continue;
    const AppliedVersion& was = record->second;
    DWS_ASSIGN_OR_RETURN(std::optional<FileStamp> stamp, StampOfVersion(versions, *at));
    if (!stamp.has_value()) continue;  // another process is removing or writing it
    if (settled && SameTime(was.index, *stamp)) continue;
    const bool untouched = was.index == stamp;
    bool changes = false;
    if (!untouched && !IsCompared(*at, *stamp)) {
      const auto found = OpenIfThere(versions, *at);
      if (absl::IsFailedPrecondition(found.status())) return NotTheApplied(versions, *at);
      DWS_RETURN_IF_ERROR(found.status());
      const std::optional<VersionFolder>& opened = *found;
      if (!opened.has_value()) continue;
      if (opened->identity() != was.identity) return NotTheApplied(versions, *at);
      stamp = opened->index_stamp();
      compared_[*at] = *stamp;
      changes = opened->changes();
    }
    if (newest.has_value()) continue;
    newest = std::pair(*at, *stamp);
    kept = SameTime(was.index, *stamp);
    // A copy of a version without changes proves nothing, so copies before it are opened too.
    settled = kept && (untouched || changes) && *at == local.version;
  }
  if (!newest.has_value()) return RunFinding{.verdict = RunVerdict::kSilent, .why = {}};
  if (!kept && lineage.stream.empty()) {
    DWS_ASSIGN_OR_RETURN(const bool chains, ChainsUp(versions, local, there));
    if (!chains) {
      return Unproved(
          fmt::format("{}: version {} was written again, and the remaining versions before it do "
                      "not prove that they are the ones that were applied here",
                      versions.path(), VersionText(newest->first)));
    }
  }
  const bool local_there = newest->first == local.version;
  if (local_there) proved_ = newest;
  return RunFinding{.why = {}, .adopted = {}, .local_there = local_there};
}

Result<bool> RunCheck::ChainsUp(const HeldFolder& versions, const LocalDigests& local,
                                const std::vector<uint64_t>& there) const {
  const Lineage& lineage = local.lineage;
  if (!lineage.since.has_value()) return false;
  std::string chain;
  for (uint64_t version = std::max<uint64_t>(*lineage.since, 1); version <= local.version;
       ++version) {
    if (!std::binary_search(there.begin(), there.end(), version)) return false;
    DWS_ASSIGN_OR_RETURN(const std::optional<FileStamp> stamp, StampOfVersion(versions, version));
    if (!stamp.has_value()) return false;
    const auto record = lineage.applied.find(version);
    if (record != lineage.applied.end() &&
        (record->second.index == stamp || IsCompared(version, *stamp))) {
      ExtendChain(chain, record->second.identity);
      continue;
    }
    const auto opened = OpenIfThere(versions, version);
    if (absl::IsFailedPrecondition(opened.status())) return false;
    DWS_RETURN_IF_ERROR(opened.status());
    if (!opened->has_value()) return false;
    ExtendChain(chain, (*opened)->identity());
  }
  return chain == lineage.chain;
}

Result<RunFinding> RunCheck::Adopt(const HeldFolder& versions, const LocalDigests& local) const {
  RunFinding finding;
  std::set<std::string> seen;  // tensors that a later version has changed
  uint64_t version = local.version;
  for (size_t i = 0; i < limits::kSlimeAdoptedVersionsMax && version > 0; ++i, --version) {
    DWS_ASSIGN_OR_RETURN(const std::optional<FileStamp> stamp, StampOfVersion(versions, version));
    if (!stamp.has_value()) break;
    const auto found = OpenIfThere(versions, version);
    if (absl::IsFailedPrecondition(found.status())) return NotTheApplied(versions, version);
    DWS_RETURN_IF_ERROR(found.status());
    const std::optional<VersionFolder>& opened = *found;
    if (!opened.has_value()) break;
    if (version == local.version) {
      finding.adopted = {.identity = opened->identity(), .index = opened->index_stamp()};
    }
    if (const auto tensor = Differing(*opened, seen)) {
      return Other(
          fmt::format("{}: after version {} tensor '{}' has another digest there than "
                      "here",
                      versions.path(), VersionText(version), *tensor));
    }
    if (!opened->index().delta.has_value()) break;  // a full checkpoint states all tensors
  }
  finding.local_there = finding.adopted.has_value();
  if (!finding.local_there) finding.verdict = RunVerdict::kSilent;
  return finding;
}

}  // namespace dws::slime
