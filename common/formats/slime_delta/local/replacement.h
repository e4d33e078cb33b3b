// Replaces the files of a local checkpoint by those of a full version that has other tensors than
// the checkpoint. (A full version with the same tensors is written into the files: write_down.h.)
//
// 1. Each file of the version is copied to CHECKPOINT/NAME.dws-new and synced. Until step 2
//    ends the checkpoint is unchanged.
// 2. CHECKPOINT/.weight_sync/redo/weight_vNNNNNN gets digests.json, which is that of after the
//    change, and then its marker: an index without delta_encoding. From here on any process that
//    opens the checkpoint completes the change.
// 3. NAME.dws-new is renamed to NAME, the index is written or removed, and files of weights
//    that the version lacks are removed. Each can be repeated.
// 4. The caller (apply.h) compares all tensors with the digests, writes digests.json and
//    state.json, and removes the record.
//
// Files that are not weights stay as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/local/local_state.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws::slime {

// The names of the tensors in which a full version differs from a checkpoint.
struct TensorChange {
  std::vector<std::string> added;
  std::vector<std::string> removed;

  bool any() const { return !added.empty() || !removed.empty(); }
};

// FAILED_PRECONDITION: a tensor has another type or shape, or the version lacks more than half of
// the checkpoint's tensors: it is of another model.
Result<TensorChange> CompareTensors(const VersionFolder& full,
                                    const safetensors::Checkpoint& checkpoint);

// Step 1. The copies get the mode and, if that is allowed, the owner of the files of `local`.
// UNAVAILABLE: the version has changed since it was opened. Other errors come from the file system.
// After any error nothing has changed.
Status StageReplacement(FileSystem& files, const std::string& checkpoint_folder,
                        const VersionFolder& full, const safetensors::Checkpoint& local);
// Step 2. `after`: what digests.json says after the change. After an error of the file system the
// marker may be set or not.
Status RecordReplacement(FileSystem& files, const std::string& checkpoint_folder,
                         const safetensors::Checkpoint& full, const LocalDigests& after);

// Returns the digests after the replacement whose marker is set; nullopt: there is none.
Result<std::optional<LocalDigests>> FindReplacement(FileSystem& files,
                                                    const std::string& checkpoint_folder);

// Step 3, for the replacement whose marker is set.
Status MoveIn(FileSystem& files, const std::string& checkpoint_folder, uint64_t version);

// Removes the files that a process left when it died in step 1. Must not be called while a marker
// is set.
Status RemoveStaged(FileSystem& files, const std::string& checkpoint_folder);

}  // namespace dws::slime
