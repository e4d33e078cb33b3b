#include "common/formats/slime_delta/local/redo.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/formats/checkpoint/settled.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/change_list.h"
#include "common/formats/slime_delta/local/mapped_windows.h"

namespace dws::slime {
namespace {

constexpr uint64_t kRedoShardBytes = uint64_t{256} << 20;
constexpr const char* kApplied = "dws_applied";
constexpr const char* kStep = "dws_step";
constexpr const char* kName = "dws_name";
constexpr const char* kFull = "full";
constexpr const char* kDelta = "delta";

Status ClearFolder(FileSystem& files, const std::string& folder) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) DWS_RETURN_IF_ERROR(files.Remove(folder + "/" + name));
  std::error_code ignored;  // a folder that stays behind empty does no harm
  std::filesystem::remove(folder, ignored);
  return OkStatus();
}

// Writes the tensor's windows through the mapping. The first access to a page is usually a write,
// because the page is not mapped before (MappedFile::Release). The disk begins to write while the
// rest is computed.
Status ReplayTensor(const VersionFolder& redo, const VersionEntry& entry,
                    const safetensors::Checkpoint& checkpoint, ReplayCheck check) {
  const safetensors::CheckpointTensor* const tensor = checkpoint.Find(entry.name);
  if (tensor == nullptr) return DataLossError("'{}' is not in the checkpoint", entry.name);
  const Encoding encoding = redo.index().delta->encoding;
  DWS_ASSIGN_OR_RETURN(EntryStream stream,
                       EntryStream::Open(encoding, redo.SourceOf(entry), tensor->size_bytes));
  std::vector<std::byte> payload(stream.payload_bytes());
  DWS_RETURN_IF_ERROR(stream.Read(payload));
  DWS_RETURN_IF_ERROR(stream.Finish());
  DWS_ASSIGN_OR_RETURN(ChangeList changes,
                       ChangeList::Make(encoding, std::move(payload), tensor->size_bytes));
  const MutableByteSpan bytes = checkpoint.Writable(*tensor);
  Checksum checksum(ChecksumFormat::kXxh3);
  DWS_RETURN_IF_ERROR(ForEachMappedWindow(
      checkpoint, *tensor,
      [&](uint64_t offset, uint64_t size_bytes) {
        const MutableByteSpan window = bytes.subspan(offset, size_bytes);
        changes.Apply(window, nullptr);
        if (check == ReplayCheck::kDigests) checksum.Update(window);
        return OkStatus();
      },
      [&](uint64_t offset, uint64_t size_bytes) {
        checkpoint.StartWriteback(*tensor, offset, size_bytes);
      }));
  if (const std::string digest = checksum.Text();
      check == ReplayCheck::kDigests && digest != entry.digest) {
    return DataLossError("'{}' has the digest {} after it was written, expected {}", entry.name,
                         digest, entry.digest);
  }
  DWS_FAILPOINT("slime.apply.after_tensor");
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<VersionWriter>> BeginRedo(FileSystem& files,
                                                 const std::string& checkpoint_folder,
                                                 const LineageStep& step, Encoding encoding) {
  return VersionWriter::Create(files, checkpoint::RedoFolder(checkpoint_folder),
                               {.version = step.version,
                                .encoding = encoding,
                                .checksum = ChecksumFormat::kXxh3,
                                .shard_bytes_max = kRedoShardBytes,
                                .extra = {{kApplied, AppliedText(step.applied)},
                                          {kStep, step.full ? kFull : kDelta},
                                          {kName, step.name},
                                          {kStreamKey, step.stream}},
                                .in_place = true});
}

Result<std::optional<VersionFolder>> OpenRedo(FileSystem& files,
                                              const std::string& checkpoint_folder) {
  const std::string redo_folder = checkpoint::RedoFolder(checkpoint_folder);
  DWS_RETURN_IF_ERROR(files.MakeFolders(redo_folder));
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, ListVersions(files, redo_folder));
  std::optional<VersionFolder> redo;
  for (const uint64_t version : versions) {
    const std::string folder = redo_folder + "/" + VersionFolderName(version);
    DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
    if (!std::binary_search(names.begin(), names.end(), safetensors::kIndexFile)) {
      DWS_RETURN_IF_ERROR(ClearFolder(files, folder));
      continue;
    }
    if (redo.has_value()) {
      return DataLossError("{}: two changes are marked as begun, {} and {}", redo_folder,
                           redo->index().version, version);
    }
    Result<VersionFolder> opened = VersionFolder::Open(folder);
    if (absl::IsUnavailable(opened.status())) {
      return DataLossError("{}: {}", folder, Message(opened.status()));
    }
    DWS_RETURN_IF_ERROR(opened.status());
    const auto& delta = opened->index().delta;
    if (!delta.has_value() || delta->checksum != ChecksumFormat::kXxh3 ||
        (delta->encoding != Encoding::kRuns && delta->encoding != Encoding::kOverwrite)) {
      return DataLossError("{}: is not a redo record", folder);
    }
    redo = *std::move(opened);
  }
  return redo;
}

Result<LineageStep> RedoStep(const VersionFolder& redo) {
  const VersionIndex& index = redo.index();
  LineageStep step;
  step.version = index.version;
  step.stream = index.Extra(kStreamKey);
  const std::string kind = index.Extra(kStep);
  std::optional<AppliedVersion> applied = ParseApplied(index.Extra(kApplied));
  if (!applied.has_value() || (kind != kFull && kind != kDelta)) {
    return DataLossError(
        "the redo record of version {} does not say what was applied: {} '{}', "
        "{} '{}'",
        VersionText(index.version), kApplied, index.Extra(kApplied), kStep, kind);
  }
  step.applied = *std::move(applied);
  step.full = kind == kFull;
  step.name = index.Extra(kName);
  return step;
}

Status Replay(const VersionFolder& redo, const safetensors::Checkpoint& checkpoint,
              ThreadPool& pool, ReplayCheck check) {
  std::vector<Status> results(redo.entries().size());
  pool.ParallelFor(results.size(), [&](size_t index, size_t) {
    results[index] = ReplayTensor(redo, redo.entries()[index], checkpoint, check);
  });
  DWS_RETURN_IF_ERROR(checkpoint.CheckIntact());
  for (const Status& result : results) DWS_RETURN_IF_ERROR(result);
  DWS_FAILPOINT("slime.apply.after_write");
  // Together, so that the disk can take them in any order.
  std::vector<Status> synced(checkpoint.files().size());
  pool.ParallelFor(synced.size(), [&](size_t index, size_t) {
    synced[index] = checkpoint.files()[index].mapping.Sync();
  });
  for (const Status& result : synced) DWS_RETURN_IF_ERROR(result);
  DWS_FAILPOINT("slime.apply.after_sync");
  return OkStatus();
}

Status RemoveRedo(FileSystem& files, const std::string& checkpoint_folder, uint64_t version) {
  const std::string folder =
      checkpoint::RedoFolder(checkpoint_folder) + "/" + VersionFolderName(version);
  // Rename the marker instead of removing it, because our Rename is durable. If a power cut brought
  // the marker back, replaying it would undo later versions.
  DWS_RETURN_IF_ERROR(files.Rename(folder + "/" + safetensors::kIndexFile, folder + "/done.tmp"));
  DWS_FAILPOINT("slime.apply.after_unmark");
  return ClearFolder(files, folder);
}

}  // namespace dws::slime
