#include "common/formats/checkpoint/settled.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "common/formats/safetensors/checkpoint_index.h"

namespace dws::checkpoint {
namespace {

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// The path after all links are resolved.
std::filesystem::path RealPath(const std::string& checkpoint) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(checkpoint, failed);
  return failed ? std::filesystem::absolute(checkpoint, failed) : real;
}

// Returns the checkpoint itself if it is a folder, else the folder that contains its file.
std::string FolderOf(const std::string& checkpoint) {
  return IsFolder(checkpoint) ? checkpoint : RealPath(checkpoint).parent_path().string();
}

// Returns the path of the marker that is set, for programs that only read the checkpoint, or
// nullopt if there is none. Changes nothing.
Result<std::optional<std::string>> FindMarker(FileSystem& files,
                                              const std::string& checkpoint_folder) {
  const std::string redo_folder = RedoFolder(checkpoint_folder);
  const Result<std::vector<std::string>> names = files.List(redo_folder);
  if (absl::IsNotFound(names.status())) return std::optional<std::string>();
  DWS_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    const std::string marker = redo_folder + "/" + name + "/" + safetensors::kIndexFile;
    std::error_code ignored;
    if (std::filesystem::exists(marker, ignored)) return std::optional<std::string>(marker);
  }
  return std::optional<std::string>();
}

// Checks that the files may be changed in place. FAILED_PRECONDITION names a file that is a
// symbolic or hard link: it may belong to another checkpoint too, as in the cache of a hub.
Status CheckNotLinked(const safetensors::Checkpoint& checkpoint) {
  for (const safetensors::CheckpointFile& file : checkpoint.files()) {
    const std::string& path = file.mapping.path();
    std::error_code failed;
    const bool linked = std::filesystem::is_symlink(path, failed);
    const uintmax_t names = failed ? 0 : std::filesystem::hard_link_count(path, failed);
    if (failed) return ErrnoError(failed.value(), path);
    if (!linked && names <= 1) continue;
    return FailedPreconditionError(
        "{} is a link, and may be shared with another checkpoint, which would change too: put a "
        "copy in its place (cp --dereference)",
        path);
  }
  return OkStatus();
}

// Makes the folder. UNAVAILABLE: another process holds a lock.
Result<KeptLocks> LockKept(FileSystem& files, const std::string& folder) {
  DWS_RETURN_IF_ERROR(files.MakeFolders(SyncFolder(folder)));
  KeptLocks locks;
  DWS_ASSIGN_OR_RETURN(locks.keeper, files.Lock(SyncFolder(folder) + "/dws_lock"));
  DWS_ASSIGN_OR_RETURN(locks.work, LockForWork(files, folder));
  return locks;
}

}  // namespace

std::string SyncFolder(const std::string& checkpoint_folder) {
  return checkpoint_folder + "/.weight_sync";
}

std::string RedoFolder(const std::string& checkpoint_folder) {
  return SyncFolder(checkpoint_folder) + "/redo";
}

Status CheckSettled(const std::string& checkpoint) {
  PosixFileSystem files;
  DWS_ASSIGN_OR_RETURN(const std::optional<std::string> marker,
                       FindMarker(files, FolderOf(checkpoint)));
  if (!marker.has_value()) return OkStatus();
  return FailedPreconditionError(
      "{}: a receiver is changing this checkpoint, or was interrupted ({}); it completes that when "
      "it is started again",
      checkpoint, *marker);
}

Status CheckUnchanged(const safetensors::Checkpoint& opened) {
  // The order matters: a change updates the files' times before it removes its redo record.
  DWS_RETURN_IF_ERROR(CheckSettled(opened.path()));
  return opened.CheckUnchanged();
}

Result<std::unique_ptr<FileLock>> LockForWork(FileSystem& files, const std::string& folder) {
  return files.Lock(SyncFolder(folder) + "/lock");
}

Result<KeptLocks> LockOutReceiver(FileSystem& files, const std::string& folder) {
  auto locks = LockKept(files, folder);
  if (!absl::IsUnavailable(locks.status())) return locks;
  return UnavailableError(
      "{}: the receiver that keeps this checkpoint is at work; stop it first ({})", folder,
      Message(locks.status()));
}

Result<KeptCheckpoint> OpenKept(FileSystem& files, const std::string& folder) {
  // This check comes first, so that no .weight_sync is created in a folder that is not a checkpoint
  // or must not be changed. The files are not mapped: another program may truncate them until this
  // process holds the lock.
  DWS_ASSIGN_OR_RETURN(const safetensors::Checkpoint looked,
                       safetensors::Checkpoint::Open(folder, FileAccess::kUnmapped));
  DWS_RETURN_IF_ERROR(CheckNotLinked(looked));
  DWS_ASSIGN_OR_RETURN(KeptLocks locks, LockKept(files, folder));
  DWS_ASSIGN_OR_RETURN(safetensors::Checkpoint checkpoint,
                       safetensors::Checkpoint::Open(folder, FileAccess::kWritable));
  return KeptCheckpoint{.locks = std::move(locks), .opened = std::move(checkpoint)};
}

}  // namespace dws::checkpoint
