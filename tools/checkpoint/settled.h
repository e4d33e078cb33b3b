// Whether a checkpoint is one version, and whose it is: what commands over checkpoints ask before
// they read one or change it where it lies.
#pragma once

#include <memory>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"

namespace dws::checkpoint {

// Where ApplyInPlace (in_place.h) writes down what it is about to do (formats/in_place_redo.h).
std::string RedoPath(const std::string& checkpoint);

// FAILED_PRECONDITION: a change of this checkpoint has not ended, or of the folder that the file
// lies in, or of a file in the folder; an apply in place, or that of a receiver that keeps the
// checkpoint. Others: of files. What begins after the call is for CheckUnchanged.
Status CheckSettled(const std::string& checkpoint);

// Whether what was read of a checkpoint is one version. It is when CheckSettled was asked before
// the checkpoint was opened, and this after the last byte was read: a change that went on at the
// time either has not ended yet, or has left the files another time (MappedFile::Sync).
// ABORTED: a file was changed; names it. FAILED_PRECONDITION: as CheckSettled.
Status CheckUnchanged(const safetensors::Checkpoint& opened);

// FAILED_PRECONDITION: it is not to be changed where it lies: a file is a link, symbolic or hard,
// and others have it too.
Status CheckNotShared(const safetensors::Checkpoint& opened);

// FAILED_PRECONDITION: the same, as a receiver keeps it, with its version and digests beside the
// files.
Status CheckNotKept(const std::string& checkpoint);

// Keeps the receiver away that keeps the checkpoint, if one does: for who has to complete what was
// begun before it did. nullptr: none keeps it. UNAVAILABLE: it is at work. Others: of files.
Result<std::unique_ptr<FileLock>> LockOutReceiver(FileSystem& files, const std::string& checkpoint);

}  // namespace dws::checkpoint
