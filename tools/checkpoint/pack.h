// Delta objects out of checkpoints: of two of them, or of one and a chain of deltas over it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/model/delta_profile.h"
#include "common/model/layout.h"
#include "tools/checkpoint/progress.h"
#include "tools/checkpoint/tensors.h"

namespace dws::checkpoint {

// All write `out` in the place of a delta object that is there. INVALID_ARGUMENT, ALREADY_EXISTS:
// as CheckObjectOutput (output_check.h), before anything is created.

// What a made object is of.
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

// The object that leads from checkpoint `a` to `b`, at `out`. It belongs to the stream 0:0...0: a
// stream is one run of a trainer, and there was none. INVALID_ARGUMENT: no such versions.
// FAILED_PRECONDITION: they have not the same tensors; names them. ABORTED, FAILED_PRECONDITION: as
// CheckUnchanged of either, which were settled when they were opened (settled.h).
Result<PackedObject> Pack(FileSystem& files, const Checkpoint& a, const Checkpoint& b,
                          const PackOptions& options, const std::string& out, ThreadPool& pool,
                          const Progress& progress);

// One object at `out` that does what `deltas` do one after the other, over the checkpoint they
// begin with, which is read for what they need of it and proved as CheckChain does. Errors as it,
// and as CheckUnchanged of the base.
Result<PackedObject> SquashOver(FileSystem& files, const Checkpoint& base,
                                std::span<const std::string> deltas, DeltaProfile profile,
                                const std::string& out, ThreadPool& pool, const Progress& progress);

// The same from the deltas alone (common/delta/squash.h), profile fast; they and the result are
// held in memory. DATA_LOSS: damaged, or with blocks that do not compose without the weights: those
// of the profiles wan and direct. FAILED_PRECONDITION: no chain, or of another layout.
Result<PackedObject> SquashAlone(FileSystem& files, const RankLayout& layout,
                                 std::span<const std::string> deltas, const std::string& out,
                                 const Progress& progress);

}  // namespace dws::checkpoint
