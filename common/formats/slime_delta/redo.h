// The intent marker of a local checkpoint: everything that applying a version writes, written down
// first, in a form that may be written again and again.
//
// CHECKPOINT/.weight_sync/redo/weight_vNNNNNN is a version folder of encoding dws_runs, whose
// digests are xxh3-128 of the tensors' new bytes, and whose index has in its metadata dws_applied
// (AppliedText), dws_stream and dws_step ("full" or "delta") of the version that is applied; a
// release before chains wrote dws_identity and no dws_step. Its index is the marker: while it is
// there, the checkpoint may be half changed, and whoever opens it completes the change before
// anything else. Without the index nothing of the checkpoint has been touched, and the rest is
// cleared.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/lineage.h"
#include "common/formats/slime_delta/version_folder.h"
#include "common/formats/slime_delta/version_writer.h"

namespace dws::slime {

// Begins to write one down; Finish sets the marker. `step` is the version that is applied.
Result<std::unique_ptr<VersionWriter>> BeginRedo(FileSystem& files,
                                                 const std::string& checkpoint_folder,
                                                 const LineageStep& step);

// The one whose marker is set; nullopt where there is none. Clears what has no marker.
Result<std::optional<VersionFolder>> OpenRedo(FileSystem& files,
                                              const std::string& checkpoint_folder);
// The marker that is set, for whoever only reads the checkpoint; nullopt where there is none.
// Changes nothing.
Result<std::optional<std::string>> FindMarker(FileSystem& files,
                                              const std::string& checkpoint_folder);
// The `step` that it was begun with. DATA_LOSS: it says none.
Result<LineageStep> RedoStep(const VersionFolder& redo);

// Writes it to the checkpoint, which is open as kWritable, checks every tensor written, and syncs.
// DATA_LOSS: a tensor that is not there, or has not the bytes it should: the checkpoint is lost.
Status Replay(const VersionFolder& redo, const safetensors::Checkpoint& checkpoint,
              ThreadPool& pool);

// Takes the marker away, then the rest.
Status RemoveRedo(FileSystem& files, const std::string& checkpoint_folder, uint64_t version);

}  // namespace dws::slime
