// Makes delta objects from two checkpoints, from one checkpoint and a chain of deltas, or from
// deltas alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/delta_profile.h"
#include "common/model/layout.h"
#include "tools/checkpoint/parts/progress.h"
#include "tools/checkpoint/parts/tensors.h"

namespace dws::checkpoint {

// All functions replace an existing delta object at `out`. INVALID_ARGUMENT, ALREADY_EXISTS: as
// CheckObjectOutput (output_check.h), before anything is created.

// A description of the new object.
struct PackedObject {
  uint64_t base_version = 0;
  uint64_t version = 0;
  uint64_t changed_tensors = 0;
  uint64_t changed_elements = 0;
  uint64_t elements = 0;  // of all tensors
  uint64_t model_bytes = 0;
  uint64_t object_bytes = 0;
};

struct PackOptions {
  uint64_t base_version = 1;
  uint64_t version = 2;  // above the base version
  DeltaProfile profile = DeltaProfile::kFast;
};

// Writes the object that changes checkpoint `a` into `b` to `out`. Its stream is 0:0...0, because
// no trainer made it. INVALID_ARGUMENT: invalid versions. FAILED_PRECONDITION: the checkpoints do
// not have the same tensors; the message names them. ABORTED, FAILED_PRECONDITION: as
// CheckUnchanged for either checkpoint. The caller calls CheckSettled for both before opening them
// (settled.h).
Result<PackedObject> Pack(FileSystem& files, const Checkpoint& a, const Checkpoint& b,
                          const PackOptions& options, const std::string& out, ThreadPool& pool,
                          const Progress& progress);

// Writes one object to `out` that does the same as all `deltas` in order. `base` is the checkpoint
// they begin with; it is proved as in CheckChain. Errors as CheckChain, and as CheckUnchanged of
// the base.
Result<PackedObject> SquashOver(FileSystem& files, const Checkpoint& base,
                                std::span<const std::string> deltas, DeltaProfile profile,
                                const std::string& out, ThreadPool& pool, const Progress& progress);

// Squashes deltas without a checkpoint (common/delta/squash.h), with profile fast; the deltas and
// the result are in memory. DATA_LOSS: a delta is damaged, or has blocks that cannot be composed
// without the weights (profiles wan and direct). FAILED_PRECONDITION: the deltas are not a chain,
// or of another layout.
Result<PackedObject> SquashAlone(FileSystem& files, const RankLayout& layout,
                                 std::span<const std::string> deltas, const std::string& out,
                                 const Progress& progress);

}  // namespace dws::checkpoint
