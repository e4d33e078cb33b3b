// The redo record of a local checkpoint: all bytes that applying a version will write, stored
// first, in a form that can be written any number of times.
//
// CHECKPOINT/.weight_sync/redo/weight_vNNNNNN is a version folder of encoding dws_runs, or
// overwrite if the version has that. Its digests are xxh3-128 of the tensors' new bytes. The
// metadata of its index has dws_applied (AppliedText), dws_stream, dws_name and dws_step ("full" or
// "delta") of the version that is applied. The index is the marker: while it exists, the checkpoint
// may be half changed, and a process that opens the checkpoint must first complete the change.
// Without the index the checkpoint is unchanged, and the rest of the record is cleared.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/local/lineage.h"
#include "common/formats/slime_delta/version_folder.h"
#include "common/formats/slime_delta/version_writer.h"

namespace dws::slime {

// Begins a redo record of the encoding kRuns or kOverwrite; Finish sets the marker. `step` is the
// version that is applied.
Result<std::unique_ptr<VersionWriter>> BeginRedo(FileSystem& files,
                                                 const std::string& checkpoint_folder,
                                                 const LineageStep& step, Encoding encoding);

// Returns the record whose marker is set, or nullopt if there is none. Clears records without a
// marker.
Result<std::optional<VersionFolder>> OpenRedo(FileSystem& files,
                                              const std::string& checkpoint_folder);
// The `step` that the record was begun with. DATA_LOSS: the record has none.
Result<LineageStep> RedoStep(const VersionFolder& redo);

// Selects whether Replay compares each tensor that it has written with its digest.
enum class ReplayCheck : uint8_t {
  kDigests,
  kNone,  // this process has just computed the digests from the checkpoint, which has not changed
          // since
};

// Writes the record's bytes to the checkpoint, which is open as kWritable, checks every tensor it
// has written as `check` says, and syncs. DATA_LOSS: a tensor is missing, or has wrong bytes after
// it was written; the checkpoint is lost.
Status Replay(const VersionFolder& redo, const safetensors::Checkpoint& checkpoint,
              ThreadPool& pool, ReplayCheck check);

// Removes the marker, then the rest.
Status RemoveRedo(FileSystem& files, const std::string& checkpoint_folder, uint64_t version);

}  // namespace dws::slime
