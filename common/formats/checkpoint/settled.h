// Checks that a checkpoint is of exactly one version, and says who keeps it and who may write its
// files. Commands for checkpoints call these before they read one, and so does the receiver that
// keeps one.
//
// Only the receiver that keeps a checkpoint changes it in place (slime_delta/local/apply.h). It
// first stores what it will write in a redo record, which it removes when all is written. While the
// record exists, a change has not finished: the checkpoint is of neither version and must not be
// read.
//
//   record  CHECKPOINT/.weight_sync/redo, when it has an index (slime_delta/local/redo.h)
//   locks   CHECKPOINT/.weight_sync/dws_lock as long as the receiver runs: one receiver keeps a
//           checkpoint; and CHECKPOINT/.weight_sync/lock, which every program of slime's format
//           takes, while the receiver or its engine reads or writes the files. Where .weight_sync
//           exists, a receiver keeps the checkpoint.
#pragma once

#include <memory>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"

namespace dws::checkpoint {

// CHECKPOINT/.weight_sync, and the folder of the redo record in it.
std::string SyncFolder(const std::string& checkpoint_folder);
std::string RedoFolder(const std::string& checkpoint_folder);

// FAILED_PRECONDITION: a receiver's change of this checkpoint, or of the folder that contains the
// file, has not finished. Others: of files. CheckUnchanged detects changes that begin after this
// call.
Status CheckSettled(const std::string& checkpoint);

// Checks that all that was read of a checkpoint is of one version. For that, call CheckSettled
// before you open the checkpoint, and this after the last read: if the checkpoint changed during
// the reads, either that change has not finished yet, or it has changed the files' times
// (MappedFile::Sync). ABORTED: a file was changed; the message names it. FAILED_PRECONDITION: as
// CheckSettled.
Status CheckUnchanged(const safetensors::Checkpoint& opened);

// The locks of a checkpoint that a receiver keeps.
struct KeptLocks {
  std::unique_ptr<FileLock> keeper;  // .weight_sync/dws_lock
  std::unique_ptr<FileLock> work;    // .weight_sync/lock
};

// Locks out other receivers, to complete a change before the checkpoint can be opened. UNAVAILABLE:
// a receiver runs, or another program changes the checkpoint; the message names it. Other errors
// come from the file system.
Result<KeptLocks> LockOutReceiver(FileSystem& files, const std::string& folder);

// Takes KeptLocks::work again, for a checkpoint that this process keeps. UNAVAILABLE: another
// program has it; the message names it. Other errors come from the file system.
Result<std::unique_ptr<FileLock>> LockForWork(FileSystem& files, const std::string& folder);

// A checkpoint that this process may change, because it is the receiver that keeps it.
struct KeptCheckpoint {
  KeptLocks locks;
  safetensors::Checkpoint opened;  // as kWritable
};

// Opens a folder as the receiver that keeps it. If no receiver kept it, this one does from now on.
// NOT_FOUND: no checkpoint there. FAILED_PRECONDITION: its files are symbolic or hard links, and
// may belong to another checkpoint too. UNAVAILABLE: another process has a lock. Other errors come
// from the file system.
Result<KeptCheckpoint> OpenKept(FileSystem& files, const std::string& folder);

}  // namespace dws::checkpoint
