// Copies a block at a time, so that the block is digested while it is in the cache.
#include "common/sources/same_host/snapshot_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "common/base/failpoint.h"
#include "common/base/threads/mutex.h"

namespace dws {
namespace {

// How many bytes are written to live memory at a time: smaller pieces cost a device more calls,
// larger ones do not stay in the cache.
constexpr uint64_t kDirectBytes = uint64_t{1} << 20;

// Reads a block that has changed since the wanted version, as it is.
void ReadNewer(const SnapshotMemory& snapshot, const BlockRange& block, FullAssembly& assembly) {
  const RankLayout& layout = assembly.layout();
  const BlockStamp& stamp =
      snapshot.stamps()[layout.slice(block.slice).first_block + block.first_block];
  const uint64_t before = stamp.load(std::memory_order_acquire);
  const std::optional<WeightVersion> at = ChangedBy(before);
  if (!at.has_value() || !assembly.has_room_for_newer()) return;
  const size_t offset = snapshot.places().slice_offset(block.slice) + FirstByte(layout, block);
  const ByteSpan bytes = snapshot.content().subspan(offset, SizeBytes(layout, block));
  NewerBlock newer{.at = *at, .block = block, .bytes = {bytes.begin(), bytes.end()}};
  std::atomic_thread_fence(std::memory_order_acquire);  // after the bytes
  if (stamp.load(std::memory_order_relaxed) == before) assembly.KeepNewer(std::move(newer));
}

Status ReadBlock(const SnapshotMemory& snapshot, WeightVersion version, const BlockRange& block,
                 FullAssembly& assembly, bool early) {
  const RankLayout& layout = assembly.layout();
  const auto stamp =
      snapshot.stamps().subspan(layout.slice(block.slice).first_block + block.first_block, 1);
  const auto there = [&] { return early ? AllBy(stamp, version) : AllAt(stamp, version); };
  if (!there()) {
    if (!early) ReadNewer(snapshot, block, assembly);
    return OkStatus();
  }
  const size_t offset = snapshot.places().slice_offset(block.slice) + FirstByte(layout, block);
  DWS_RETURN_IF_ERROR(
      assembly.Take(block, snapshot.content().subspan(offset, SizeBytes(layout, block))));
  if (!there()) assembly.Drop(block);  // changed while it was copied
  return OkStatus();
}

// Reads the blocks of a piece for live memory, through a buffer: bytes must not change while they
// are written there.
Status ReadPiece(const SnapshotMemory& snapshot, WeightVersion version, const BlockRange& piece,
                 FullAssembly& assembly, bool early, std::vector<std::byte>& buffer) {
  const RankLayout& layout = assembly.layout();
  const auto stamps = snapshot.stamps().subspan(
      layout.slice(piece.slice).first_block + piece.first_block, piece.block_count);
  const auto there = [&] { return early ? AllBy(stamps, version) : AllAt(stamps, version); };
  if (there()) {
    const size_t offset = snapshot.places().slice_offset(piece.slice) + FirstByte(layout, piece);
    const MutableByteSpan room = assembly.Room(piece, buffer);
    std::memcpy(room.data(), snapshot.content().data() + offset, room.size());
    if (there()) return assembly.Take(piece, room);
  } else if (piece.block_count == 1 && !early) {
    ReadNewer(snapshot, piece, assembly);
  }
  for (uint32_t i = 0; piece.block_count > 1 && i < piece.block_count; ++i) {
    const BlockRange block{
        .slice = piece.slice, .first_block = piece.first_block + i, .block_count = 1};
    DWS_RETURN_IF_ERROR(ReadPiece(snapshot, version, block, assembly, early, buffer));
  }
  return OkStatus();
}

}  // namespace

Status ReadSnapshot(const SnapshotMemory& snapshot, WeightVersion version, FullAssembly& assembly,
                    ThreadPool& pool, bool early) {
  std::vector<BlockRange> pieces;
  for (const BlockRange& range : assembly.Missing()) {
    const DType dtype = assembly.layout().slice(range.slice).dtype;
    const uint32_t together = assembly.direct() ? BlocksIn(kDirectBytes, dtype) : 1;
    for (uint32_t i = 0; i < range.block_count; i += together) {
      pieces.push_back({.slice = range.slice,
                        .first_block = range.first_block + i,
                        .block_count = std::min(together, range.block_count - i)});
    }
  }
  std::vector<std::vector<std::byte>> buffers(pool.worker_count());
  Mutex mutex;
  Status first;
  std::atomic<bool> failed{false};
  pool.ParallelFor(pieces.size(), [&](size_t index, size_t worker) {
    if (failed) return;
    DWS_KILLPOINT("receiver.full.inside_snapshot");
    const Status status =
        assembly.direct()
            ? ReadPiece(snapshot, version, pieces[index], assembly, early, buffers[worker])
            : ReadBlock(snapshot, version, pieces[index], assembly, early);
    if (status.ok()) return;
    failed = true;
    MutexLock lock(mutex);
    first.Update(status);
  });
  return first;
}

}  // namespace dws
