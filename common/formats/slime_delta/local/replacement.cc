// The numbers refer to the steps in replacement.h.
#include "common/formats/slime_delta/local/replacement.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "common/base/failpoint.h"
#include "common/formats/checkpoint/settled.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/local/write_down.h"
#include "common/formats/slime_delta/windows.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

constexpr std::string_view kStagedEnding = ".dws-new";

std::string RecordFolder(const std::string& checkpoint_folder, uint64_t version) {
  return checkpoint::RedoFolder(checkpoint_folder) + "/" + VersionFolderName(version);
}

std::string RecordedDigests(const std::string& record) { return record + "/digests.json"; }

// Gives a file the mode of `like`, and its owner where that is allowed: engines may run as another
// user.
void TakeAccess(const std::string& like, const std::string& path) {
  struct stat found = {};
  if (::stat(like.c_str(), &found) != 0) return;
  (void)!::chown(path.c_str(), found.st_uid, found.st_gid);  // first: it can clear bits of the mode
  (void)::chmod(path.c_str(), found.st_mode & 07777);
}

Status CopyFile(FileSystem& files, const MappedFile& from, const std::string& to) {
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, files.Create(to));
  const auto copy = [&](uint64_t offset, MutableByteSpan window) -> Status {
    DWS_RETURN_IF_ERROR(from.ReadAt(offset, window));
    return file->Append(window);
  };
  DWS_RETURN_IF_ERROR(ForEachWindow(from.size_bytes(), copy));
  return file->Sync();
}

// Checks that the copy of a file has the bytes whose digests were read before.
Status CheckCopy(const std::string& path, const VersionFolder& full) {
  DWS_ASSIGN_OR_RETURN(const safetensors::Checkpoint copy, safetensors::Checkpoint::Open(path));
  for (const safetensors::CheckpointTensor& tensor : copy.tensors()) {
    const auto entry = std::lower_bound(
        full.entries().begin(), full.entries().end(), tensor.name,
        [](const VersionEntry& one, const std::string& name) { return one.name < name; });
    if (entry == full.entries().end() || entry->name != tensor.name ||
        entry->digest != ChecksumOf(copy, tensor, ChecksumFormat::kXxh3)) {
      return UnavailableError(
          "version {}, tensor '{}': was changed while it was read: read it again",
          VersionText(full.index().version), tensor.name);
    }
  }
  return OkStatus();
}

Status CopyFiles(FileSystem& files, const std::string& checkpoint_folder, const VersionFolder& full,
                 const std::string& like) {
  for (const safetensors::CheckpointFile& file : full.checkpoint()->files()) {
    const std::string to = fmt::format("{}/{}{}", checkpoint_folder, file.name, kStagedEnding);
    DWS_RETURN_IF_ERROR(CopyFile(files, file.mapping, to));
    TakeAccess(like, to);
    DWS_RETURN_IF_ERROR(CheckCopy(to, full));
  }
  return OkStatus();
}

// The last change of a replacement, which also makes those before it durable.
Status MoveIndex(FileSystem& files, const std::string& checkpoint_folder,
                 const VersionIndex& marker, const std::set<std::string>& named) {
  const std::string path = checkpoint_folder + "/" + safetensors::kIndexFile;
  if (named.size() != 1 || *named.begin() != safetensors::kSingleFile) {
    DWS_ASSIGN_OR_RETURN(const std::string text,
                         safetensors::MakeIndex({.weight_map = marker.weight_map}));
    DWS_RETURN_IF_ERROR(files.ReplaceFile(path, AsBytes(text)));
    TakeAccess(checkpoint_folder + "/" + *named.begin(), path);
    return OkStatus();
  }
  const std::string gone = path + std::string(kStagedEnding);
  const Status renamed = files.Rename(path, gone);
  if (absl::IsNotFound(renamed)) return OkStatus();  // there was none, or it went before
  DWS_RETURN_IF_ERROR(renamed);
  return files.Remove(gone);
}

// The index of a record, if it is that of a replacement.
Result<std::optional<VersionIndex>> ReadMarker(FileSystem& files, const std::string& record) {
  const Result<VersionIndex> index = ReadVersionIndex(files, record);
  if (absl::IsUnavailable(index.status())) return std::optional<VersionIndex>();
  DWS_RETURN_IF_ERROR(index.status());
  if (index->delta.has_value()) return std::optional<VersionIndex>();
  return std::optional<VersionIndex>(*index);
}

}  // namespace

Result<TensorChange> CompareTensors(const VersionFolder& full,
                                    const safetensors::Checkpoint& checkpoint) {
  TensorChange change;
  std::vector<std::string> others;
  for (const safetensors::CheckpointTensor& tensor : full.checkpoint()->tensors()) {
    const safetensors::CheckpointTensor* const here = checkpoint.Find(tensor.name);
    if (here == nullptr) {
      change.added.push_back(tensor.name);
    } else if (here->dtype != tensor.dtype || here->shape != tensor.shape) {
      others.push_back(tensor.name);
    }
  }
  for (const safetensors::CheckpointTensor& here : checkpoint.tensors()) {
    if (full.checkpoint()->Find(here.name) == nullptr) change.removed.push_back(here.name);
  }
  const std::string version = VersionText(full.index().version);
  if (!others.empty()) {
    return FailedPreconditionError(
        "version {}: a full checkpoint with another type or shape of these tensors: {}", version,
        ShortList(others));
  }
  if (change.removed.size() * 2 > checkpoint.tensors().size()) {
    return FailedPreconditionError(
        "version {}: a full checkpoint of another model: it lacks {} of the {} tensors of the "
        "local checkpoint: {}",
        version, change.removed.size(), checkpoint.tensors().size(), ShortList(change.removed));
  }
  return change;
}

Status StageReplacement(FileSystem& files, const std::string& checkpoint_folder,
                        const VersionFolder& full, const safetensors::Checkpoint& local) {
  const Status copied =
      CopyFiles(files, checkpoint_folder, full, local.files().front().mapping.path());
  // Check this first: an error that comes from a mixture of two folders must not be reported.
  Status staged = full.CheckUnchanged();
  if (staged.ok()) staged = copied;
  // The disk may be full, and must not stay so.
  if (!staged.ok()) (void)RemoveStaged(files, checkpoint_folder);
  return staged;
}

Status RecordReplacement(FileSystem& files, const std::string& checkpoint_folder,
                         const safetensors::Checkpoint& full, const LocalDigests& after) {
  DWS_FAILPOINT("slime.apply.before_intent");
  const std::string record = RecordFolder(checkpoint_folder, after.version);
  DWS_RETURN_IF_ERROR(files.MakeFolders(record));
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> left, files.List(record));
  for (const std::string& name : left) DWS_RETURN_IF_ERROR(files.Remove(record + "/" + name));
  DWS_RETURN_IF_ERROR(WriteDigestsTo(files, RecordedDigests(record), after));
  VersionIndex index{.version = after.version};
  for (const safetensors::CheckpointTensor& tensor : full.tensors()) {
    index.weight_map[tensor.name] = full.files()[tensor.file].name;
  }
  DWS_ASSIGN_OR_RETURN(const std::string text, MakeVersionIndex(index));
  return files.ReplaceFile(record + "/" + safetensors::kIndexFile, AsBytes(text));
}

Result<std::optional<LocalDigests>> FindReplacement(FileSystem& files,
                                                    const std::string& checkpoint_folder) {
  const auto versions = ListVersions(files, checkpoint::RedoFolder(checkpoint_folder));
  if (absl::IsNotFound(versions.status())) return std::optional<LocalDigests>();
  DWS_RETURN_IF_ERROR(versions.status());
  for (const uint64_t version : *versions) {
    const std::string record = RecordFolder(checkpoint_folder, version);
    DWS_ASSIGN_OR_RETURN(const std::optional<VersionIndex> marker, ReadMarker(files, record));
    if (!marker.has_value()) continue;
    DWS_ASSIGN_OR_RETURN(std::optional<LocalDigests> after,
                         ReadDigestsFrom(files, RecordedDigests(record)));
    if (after.has_value() && after->version == version) return after;
    return DataLossError("{}: the digests of version {} are lost", record, VersionText(version));
  }
  return std::optional<LocalDigests>();
}

Status MoveIn(FileSystem& files, const std::string& checkpoint_folder, uint64_t version) {
  DWS_ASSIGN_OR_RETURN(const std::optional<VersionIndex> marker,
                       ReadMarker(files, RecordFolder(checkpoint_folder, version)));
  if (!marker.has_value())
    return InternalError("{}: the redo record is missing", checkpoint_folder);
  std::set<std::string> named;
  for (const auto& [tensor, file] : marker->weight_map) named.insert(file);
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> there, files.List(checkpoint_folder));
  // Before the renames, which sync the folder: a shard that comes back would be read again.
  for (const std::string& name : there) {
    if (!safetensors::IsShardName(name) || named.contains(name)) continue;
    DWS_RETURN_IF_ERROR(files.Remove(checkpoint_folder + "/" + name));
  }
  for (const std::string& name : named) {
    const std::string staged = name + std::string(kStagedEnding);
    if (!std::binary_search(there.begin(), there.end(), staged)) continue;
    DWS_RETURN_IF_ERROR(
        files.Rename(checkpoint_folder + "/" + staged, checkpoint_folder + "/" + name));
    DWS_FAILPOINT("slime.apply.after_tensor");
  }
  DWS_RETURN_IF_ERROR(MoveIndex(files, checkpoint_folder, *marker, named));
  DWS_FAILPOINT("slime.apply.after_write");
  return OkStatus();
}

Status RemoveStaged(FileSystem& files, const std::string& checkpoint_folder) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> there, files.List(checkpoint_folder));
  for (const std::string& name : there) {
    if (!name.ends_with(kStagedEnding)) continue;
    DWS_RETURN_IF_ERROR(files.Remove(checkpoint_folder + "/" + name));
  }
  return OkStatus();
}

}  // namespace dws::slime
