// Checks whether a checkpoint is of exactly one version, and who keeps it. Commands for checkpoints
// call these before they read a checkpoint or change it in place.
#pragma once

#include <memory>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"

namespace dws::checkpoint {

// The path of ApplyInPlace's redo record (in_place.h, formats/in_place_redo.h).
std::string RedoPath(const std::string& checkpoint);

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

// If a receiver keeps the checkpoint, locks it out. Use this to complete a change that began before
// the receiver kept it. nullptr: no receiver keeps it. UNAVAILABLE: the receiver is at work.
// Others: of files.
Result<std::unique_ptr<FileLock>> LockOutReceiver(FileSystem& files, const std::string& checkpoint);

}  // namespace dws::checkpoint
