// Keeps a GPU's copy of the snapshot current when a version's changes were not found by comparing
// with it: writes them to the copy, as receivers commit staged blocks.
#pragma once

#include <span>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/cuda/work_lane.h"
#include "sender_daemon/capture/device_snapshot.h"
#include "sender_daemon/capture/listed_changes.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/capture/weight_source.h"

namespace dws {

struct ListedBlock {
  BlockRef ref;
  ListedChanges changes;
};

// Writes the changes of `blocks` to `copy`, which is a copy and has all of them. The lanes are of
// its GPU and in no other use. The changes are written when this returns, also after an error:
// INTERNAL, of the GPU; then some of them are.
Status WriteToCopy(const Snapshot& snapshot, const DeviceSnapshot& copy,
                   std::span<const ListedBlock> blocks, std::span<cuda::WorkLane* const> lanes,
                   ThreadPool& pool);

}  // namespace dws
