// Full tensors from a mapped snapshot.
#pragma once

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/weight_version.h"
#include "common/spool/full_assembly.h"
#include "common/transport/same_host/snapshot_memory.h"

namespace dws {

// Copies what is missing in `assembly` and still is as of `version`, which was published; what the
// trainer has changed since, or is changing, stays missing. Nobody waits for it. Errors:
// FullAssembly::Take's.
// `early`: instead what the capture of `version`, which may be open, has brought already.
Status ReadSnapshot(const SnapshotMemory& snapshot, WeightVersion version, FullAssembly& assembly,
                    ThreadPool& pool, bool early = false);

}  // namespace dws
