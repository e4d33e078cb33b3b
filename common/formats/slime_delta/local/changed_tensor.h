// One tensor of a local checkpoint as it is after a version, window by window.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/runs.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws::slime {

// A window of the tensor after the version. `runs` are the bytes that differ from before, with
// offsets in the window, in order; a few equal bytes between two changes may be in a run.
struct ChangedWindow {
  uint64_t offset = 0;  // in the tensor
  ByteSpan after;
  std::span<const ByteRun> runs;
};

// Calls `fn` for each window of `before`, in order. `entry` has the bytes of the tensor's entry of
// `version`. DATA_LOSS: the entry is malformed. UNAVAILABLE: it can no longer be read. Other errors
// come from `fn`.
Status ForEachChangedWindow(const VersionIndex& version, const EntrySource& entry,
                            const safetensors::Checkpoint& checkpoint,
                            const safetensors::CheckpointTensor& before,
                            const std::function<void(const ChangedWindow&)>& fn);

}  // namespace dws::slime
