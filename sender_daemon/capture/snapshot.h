// The weights captured last, which the next capture compares with: every slice of the rank, in
// slice order, in one contiguous buffer, with the digest of each slice. Written by captures and
// read by full transfers. SnapshotGate keeps them apart; readers that do without the gate look at
// the blocks' stamps before and after.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/weight_version.h"
#include "common/transport/same_host/snapshot_memory.h"
#include "sender_daemon/capture/class_tables.h"
#include "sender_daemon/capture/density_watch.h"
#include "sender_daemon/capture/full/full_watch.h"
#include "sender_daemon/capture/full/open_reads.h"
#include "sender_daemon/capture/gpu_copies.h"
#include "sender_daemon/capture/snapshot_gate.h"
#include "sender_daemon/capture/version_in_flight.h"

namespace dws {

// What captures leave to the next one.
struct CaptureHistory {
  explicit CaptureHistory(const RankLayout& layout)
      : class_tables(layout.slice_count()),
        density_watch(layout),
        full_watch(layout.size_bytes(), layout.block_count()) {}

  ClassTables class_tables;    // how blocks of the next version may be class-split
  DensityWatch density_watch;  // finds the groups of tensors that change nearly everywhere
  FullWatch full_watch;        // decides whether it is better to publish the next version in full
  // How often a capture was undone: then a holder of a copy of the bytes copies again. Only inside
  // a capture.
  uint64_t undone = 0;
  // The copies of the bytes on GPUs. Threads: safe from any.
  const std::shared_ptr<GpuCopies> gpu_copies = std::make_shared<GpuCopies>();
};

// Lifecycle: made once for a layout; has no version until the first capture ends. Threads: bytes,
// digests and version are used only between the gate's Begin and End of the right kind.
class Snapshot {
 public:
  // `huge_pages`: as SnapshotMemory. RESOURCE_EXHAUSTED: there is not enough memory.
  static Result<std::unique_ptr<Snapshot>> Create(RankLayout layout, bool huge_pages = false);
  bool huge_pages() const { return huge_pages_; }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const RankLayout& layout() const { return layout_; }
  SnapshotGate& gate() { return gate_; }

  // The bytes of one slice, or of one of its blocks, in slice order.
  MutableByteSpan SliceBytes(RankSlice slice);
  MutableByteSpan BlockBytes(RankSlice slice, uint32_t block);

  // All slices, with the gaps between them.
  MutableByteSpan AllBytes() { return memory_->content(); }
  const SnapshotMemory& memory() const { return *memory_; }
  // See SnapshotMemory.
  void Populate(ThreadPool& pool) { memory_->Populate(pool); }

  // Code that changes the block's bytes must hold the returned object meanwhile.
  StampedChange Change(RankSlice slice, uint32_t block, WeightVersion version) {
    return {memory_->stamps()[layout_.slice(slice).first_block + block], version};
  }
  // The stamps of some blocks of a slice (AllAt, AllBy). Reading them needs no gate.
  std::span<const BlockStamp> Stamps(RankSlice slice, uint32_t first, uint32_t count) const;

  // Digest of the bytes of the blocks [first, end) of a slice.
  Digest DigestBlocks(RankSlice slice, uint32_t first, uint32_t end);

  // The version of these bytes. There is none before the first capture, and after the capture of a
  // full version was given up half-way: then the bytes are of no version, and nobody reads them.
  std::optional<WeightVersion> version() const { return version_; }
  const std::vector<Digest>& digests() const { return digests_; }
  // The newest version whose capture has ended: its number cannot be used again.
  std::optional<WeightVersion> newest() const { return newest_; }
  void SetVersion(WeightVersion version, std::vector<Digest> digests);
  void Invalidate();

  // The slice's digest does not fit its bytes (a bit of either flipped). The next version that
  // brings the whole slice recomputes the digest. Only inside a capture, or with the gate held as
  // for one.
  void SetDistrust(RankSlice slice, bool distrust) { distrusted_[slice.value()] = distrust; }
  bool distrusts(RankSlice slice) const { return distrusted_[slice.value()]; }

  CaptureHistory& history() { return history_; }
  // The version that is being captured. Threads: safe from any.
  VersionInFlight& in_flight() { return in_flight_; }
  const VersionInFlight& in_flight() const { return in_flight_; }
  // The readers of full tensors. The blocks kept for them take at most the memory of one more
  // snapshot.
  OpenReads& reads() { return reads_; }

 private:
  Snapshot(RankLayout layout, std::unique_ptr<SnapshotMemory> memory, bool huge_pages);

  const RankLayout layout_;
  const bool huge_pages_;  // are wanted
  const std::unique_ptr<SnapshotMemory> memory_;
  SnapshotGate gate_;
  std::optional<WeightVersion> version_;
  std::optional<WeightVersion> newest_;
  std::vector<Digest> digests_;
  std::vector<bool> distrusted_;  // by rank slice
  CaptureHistory history_;
  VersionInFlight in_flight_;
  OpenReads reads_;
};

}  // namespace dws
