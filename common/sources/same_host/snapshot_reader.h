// Full tensors from a mapped snapshot.
#pragma once

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/weight_version.h"
#include "common/spool/full_assembly.h"
#include "common/transport/same_host/snapshot_memory.h"

namespace dws {

// Copies the blocks that `assembly` lacks and that are still as of `version`, which was published.
// Blocks that the trainer has changed since stay missing, and are kept as they are now
// (FullAssembly::KeepNewer). Neither side waits for the other. Errors: those of FullAssembly::Take.
// `early`: copies instead the blocks that the capture of `version`, which may be open, has already
// brought.
Status ReadSnapshot(const SnapshotMemory& snapshot, WeightVersion version, FullAssembly& assembly,
                    ThreadPool& pool, bool early = false);

}  // namespace dws
