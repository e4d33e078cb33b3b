// A block at a time: it is digested while the copy has left it in the cache.
#include "receiver_daemon/transfer/same_host/snapshot_reader.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "common/base/failpoint.h"
#include "common/base/threads/mutex.h"

namespace dws {
namespace {

Status ReadBlock(const SnapshotMemory& snapshot, WeightVersion version, const BlockRange& block,
                 FullAssembly& assembly, bool early) {
  const RankLayout& layout = assembly.layout();
  const auto stamp =
      snapshot.stamps().subspan(layout.slice(block.slice).first_block + block.first_block, 1);
  const auto there = [&] { return early ? AllBy(stamp, version) : AllAt(stamp, version); };
  if (!there()) return OkStatus();
  const size_t offset = snapshot.places().slice_offset(block.slice) + FirstByte(layout, block);
  DWS_RETURN_IF_ERROR(
      assembly.Take(block, snapshot.content().subspan(offset, SizeBytes(layout, block))));
  if (!there()) assembly.Drop(block);  // changed while it was copied
  return OkStatus();
}

}  // namespace

Status ReadSnapshot(const SnapshotMemory& snapshot, WeightVersion version, FullAssembly& assembly,
                    ThreadPool& pool, bool early) {
  std::vector<BlockRange> blocks;
  for (const BlockRange& range : assembly.Missing()) {
    for (uint32_t i = 0; i < range.block_count; ++i) {
      blocks.push_back(
          {.slice = range.slice, .first_block = range.first_block + i, .block_count = 1});
    }
  }
  Mutex mutex;
  Status first;
  std::atomic<bool> failed{false};
  pool.ParallelFor(blocks.size(), [&](size_t index, size_t) {
    if (failed) return;
    DWS_KILLPOINT("receiver.full.inside_snapshot");
    const Status status = ReadBlock(snapshot, version, blocks[index], assembly, early);
    if (status.ok()) return;
    failed = true;
    MutexLock lock(mutex);
    first.Update(status);
  });
  return first;
}

}  // namespace dws
