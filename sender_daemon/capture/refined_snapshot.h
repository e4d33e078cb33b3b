// A snapshot of the same weights in a finer layout.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "sender_daemon/capture/snapshot.h"

namespace dws {

// Checks that there is memory for a second snapshot as large as `old`. RESOURCE_EXHAUSTED: there is
// not enough now.
Status CheckMemoryFor(const Snapshot& old);

// A copy of `old` in layout `finer` (Refined of its layout) at the same version, with new digests.
// Reads `old` once, while no capture is open; readers of `old` go on. Takes the memory of a second
// snapshot. DATA_LOSS: a slice of `old` does not have its digest; the message names the tensor.
// INVALID_ARGUMENT: a finer slice has two levels of stride in the coarse one. RESOURCE_EXHAUSTED:
// there is not enough memory.
Result<std::unique_ptr<Snapshot>> RefinedSnapshot(Snapshot& old, RankLayout finer,
                                                  ThreadPool& pool);

}  // namespace dws
