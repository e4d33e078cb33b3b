// Checks whether a checkpoint is of exactly one version, who keeps it, and who may write its files.
// Commands for checkpoints call these before they read a checkpoint or change it in place, and so
// does the receiver that keeps one.
//
// Two programs change checkpoints in place. Each first stores what it will write in a redo record,
// which it removes when all is written. While a redo record exists, a change has not finished: the
// checkpoint is of neither version and must not be read.
//
//   `dwsctl apply --in-place` (tools/checkpoint/in_place.h)
//     record  CHECKPOINT/.dws-apply.redo, or FILE.dws-apply.redo for a single file. A folder is also
//             half changed when one of its files is.
//     lock    that of the checkpoint's first file
//     not where a receiver keeps the checkpoint
//   a receiver (slime_delta/apply.h)
//     record  CHECKPOINT/.weight_sync/redo, when it has an index (slime_delta/redo.h)
//     locks   CHECKPOINT/.weight_sync/dws_lock as long as the receiver runs: one receiver keeps a
//             checkpoint; and CHECKPOINT/.weight_sync/lock, which every program of slime's format
//             takes, while the receiver or its engine reads or writes the files. Where .weight_sync
//             exists, a receiver keeps the checkpoint.
//     not where the other has a record or works
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"

namespace dws::checkpoint {

// The end of the name of the redo records of `dwsctl apply --in-place`.
inline constexpr std::string_view kInPlaceRedoName = ".dws-apply.redo";
// The path of ApplyInPlace's redo record.
std::string RedoPath(const std::string& checkpoint);

// CHECKPOINT/.weight_sync, and the folder of a receiver's redo record in it.
std::string SyncFolder(const std::string& checkpoint_folder);
std::string RedoFolder(const std::string& checkpoint_folder);

// FAILED_PRECONDITION: a change of this checkpoint, of the folder that contains the file, or of a
// file in the folder has not finished. The change is an apply in place or that of a receiver that
// keeps the checkpoint. Others: of files. CheckUnchanged detects changes that begin after this
// call.
Status CheckSettled(const std::string& checkpoint);

// Checks that all that was read of a checkpoint is of one version. For that, call CheckSettled
// before you open the checkpoint, and this after the last read: a change during the reads either
// has not finished yet, or has changed the files' times (MappedFile::Sync). ABORTED: a file was
// changed; the message names it. FAILED_PRECONDITION: as CheckSettled.
Status CheckUnchanged(const safetensors::Checkpoint& opened);

// FAILED_PRECONDITION: the checkpoint must not be changed in place, because a file is a symbolic or
// hard link and may belong to another checkpoint too.
Status CheckNotShared(const safetensors::Checkpoint& opened);

// FAILED_PRECONDITION: the checkpoint must not be changed in place, because a receiver keeps it,
// with its version and digests beside the files.
Status CheckNotKept(const std::string& checkpoint);

// The locks of a checkpoint that a receiver keeps.
struct KeptLocks {
  std::unique_ptr<FileLock> keeper;  // .weight_sync/dws_lock
  std::unique_ptr<FileLock> work;    // .weight_sync/lock
};

// If a receiver keeps the checkpoint, locks it out. Use this to complete a change that began before
// the receiver kept it. Null: no receiver keeps it. UNAVAILABLE: the receiver runs, or another
// program changes the checkpoint; the message names it. Others: of files.
Result<KeptLocks> LockOutReceiver(FileSystem& files, const std::string& checkpoint);

// KeptLocks::work again, for a checkpoint that this process keeps. UNAVAILABLE: another program has
// it; the message names it. Others: of files.
Result<std::unique_ptr<FileLock>> LockForWork(FileSystem& files, const std::string& folder);

// A checkpoint that this process may change, as the receiver that keeps it.
struct KeptCheckpoint {
  KeptLocks locks;
  safetensors::Checkpoint opened;  // as kWritable
};

// Opens a folder as the receiver that keeps it, from now on if none did. NOT_FOUND: no checkpoint
// there. FAILED_PRECONDITION: its files are links, or an apply in place has not finished.
// UNAVAILABLE: another process has a lock. Others: of files.
Result<KeptCheckpoint> OpenKept(FileSystem& files, const std::string& folder);

}  // namespace dws::checkpoint
