// The weights captured last, which the next capture compares with: every slice of the rank, in
// slice order, in one contiguous buffer, with the digest of each slice. Written by captures and
// read by full transfers. SnapshotGate keeps them apart; readers that do without the gate look at
// the blocks' stamps before and after.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/weight_version.h"
#include "common/transport/same_host/snapshot_memory.h"
#include "sender_daemon/capture/class_tables.h"
#include "sender_daemon/capture/density_watch.h"
#include "sender_daemon/capture/full/full_watch.h"
#include "sender_daemon/capture/full/open_reads.h"
#include "sender_daemon/capture/open_delta.h"
#include "sender_daemon/capture/snapshot_gate.h"

namespace dws {

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
  size_t size_bytes() const { return memory_->places().size_bytes(); }

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
  // Returns whether the bytes of some blocks of a slice are those of `version`, which was
  // published. Needs no gate; see AllAt.
  bool BlocksAt(RankSlice slice, uint32_t first, uint32_t count, WeightVersion version) const;
  // Returns whether they are captured already, of full version `version`, whose capture may be
  // open. Needs no gate; see AllBy.
  bool BlocksBy(RankSlice slice, uint32_t first, uint32_t count, WeightVersion version) const;

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

  // The full version whose capture is open. Threads: safe from any, like the next one.
  std::optional<WeightVersion> replacing() const;
  bool captured_last(WeightVersion version) const { return captured_.load() == version.value(); }
  // kCaptured: its capture has ended. kNeither: it was not begun, or was given up.
  // kCaptured also if newer ones have been captured since.
  enum class Stage : uint8_t { kNeither, kReplacing, kCaptured };
  Stage StageOf(WeightVersion version) const;
  // By the capture of a full version: while it is open, and when it has ended in any way.
  void SetReplacing(std::optional<WeightVersion> version);

  // The delta whose capture began last, which may have ended. Null: there was none yet. Threads:
  // safe from any, like the next one.
  std::shared_ptr<OpenDelta> open_delta() const;
  void SetOpenDelta(std::shared_ptr<OpenDelta> delta);

  // How often a capture was undone. A holder of a copy of the bytes copies again when this changes.
  // Only inside a capture.
  uint64_t undone() const { return undone_; }
  void CountUndone() { ++undone_; }

  // The slice's digest does not fit its bytes (a bit of either flipped). The next version that
  // brings the whole slice recomputes the digest. Only inside a capture, or with the gate held as
  // for one.
  void Distrust(RankSlice slice) { distrusted_[slice.value()] = true; }
  void Trust(RankSlice slice) { distrusted_[slice.value()] = false; }
  bool distrusts(RankSlice slice) const { return distrusted_[slice.value()]; }

  // How blocks of the next version may be class-split.
  ClassTables& class_tables() { return class_tables_; }
  // Finds the groups of tensors that change nearly everywhere.
  DensityWatch& density_watch() { return density_watch_; }
  // Decides whether it is better to publish the next version in full.
  FullWatch& full_watch() { return full_watch_; }
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
  std::atomic<uint64_t> captured_{0};   // version_; 0: none
  std::atomic<uint64_t> replacing_{0};  // 0: none
  mutable Mutex open_delta_mutex_;
  std::shared_ptr<OpenDelta> open_delta_ GUARDED_BY(open_delta_mutex_);
  std::vector<Digest> digests_;
  uint64_t undone_ = 0;
  std::vector<bool> distrusted_;  // by rank slice
  ClassTables class_tables_;
  DensityWatch density_watch_;
  FullWatch full_watch_;
  OpenReads reads_;
};

}  // namespace dws
