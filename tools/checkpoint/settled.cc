#include "tools/checkpoint/settled.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "common/formats/in_place_redo.h"
#include "common/formats/slime_delta/local_state.h"
#include "common/formats/slime_delta/redo.h"

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

// The checkpoint itself if it is a folder, else the folder that contains its file.
std::string FolderOf(const std::string& checkpoint) {
  return IsFolder(checkpoint) ? checkpoint : RealPath(checkpoint).parent_path().string();
}

bool IsKept(const std::string& checkpoint) {
  std::error_code ignored;
  return std::filesystem::exists(slime::SyncFolder(FolderOf(checkpoint)), ignored);
}

// The redo records of the folder and of single files in it.
std::vector<std::string> RedosIn(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code ended;
  for (std::filesystem::directory_iterator entry(folder, ended), end; !ended && entry != end;
       entry.increment(ended)) {
    if (entry->path().native().ends_with(kInPlaceRedoName)) paths.push_back(entry->path());
  }
  return paths;
}

}  // namespace

std::string RedoPath(const std::string& checkpoint) {
  if (!IsFolder(checkpoint)) return checkpoint + std::string(kInPlaceRedoName);
  return (std::filesystem::path(checkpoint) / kInPlaceRedoName).string();
}

Status CheckSettled(const std::string& checkpoint) {
  std::vector<std::string> redos;
  if (IsFolder(checkpoint)) {
    redos = RedosIn(checkpoint);
  } else {
    redos = {RedoPath(RealPath(checkpoint)), RedoPath(FolderOf(checkpoint))};
  }
  for (const std::string& redo : redos) {
    std::error_code ignored;
    if (!std::filesystem::exists(redo, ignored)) continue;
    const std::string changed = redo.substr(0, redo.size() - kInPlaceRedoName.size());
    return FailedPreconditionError(
        "{}: an apply in place of {} has not ended ({}); wait for it, or if it was interrupted, "
        "run it again to complete it",
        checkpoint, changed, redo);
  }
  PosixFileSystem files;
  DWS_ASSIGN_OR_RETURN(const std::optional<std::string> marker,
                       slime::FindMarker(files, FolderOf(checkpoint)));
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

Status CheckNotShared(const safetensors::Checkpoint& opened) {
  const Status linked = safetensors::CheckNotLinked(opened);
  if (linked.ok()) return linked;
  return MakeStatus(linked.code(), fmt::format("{}, or give -o for a new one", Message(linked)));
}

Status CheckNotKept(const std::string& checkpoint) {
  if (!IsKept(checkpoint)) return OkStatus();
  return FailedPreconditionError(
      "{}: a receiver keeps this checkpoint ({} is there) and would not notice the change; give "
      "-o for a new one",
      checkpoint, slime::SyncFolder(FolderOf(checkpoint)));
}

Result<std::unique_ptr<FileLock>> LockOutReceiver(FileSystem& files,
                                                  const std::string& checkpoint) {
  if (!IsKept(checkpoint)) return std::unique_ptr<FileLock>();
  auto lock = slime::LockLocal(files, FolderOf(checkpoint));
  if (!absl::IsUnavailable(lock.status())) return lock;
  return UnavailableError(
      "{}: the receiver that keeps this checkpoint is at work; stop it first ({})", checkpoint,
      Message(lock.status()));
}

}  // namespace dws::checkpoint
