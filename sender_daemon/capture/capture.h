// Captures weights into the snapshot: diff, encode, digest and snapshot update, block by block over
// a thread pool. The result is one captured version, or nothing: an unfinished capture is undone
// from its own steps.
//
// A full version is only copied: no delta leads to it. An unfinished full version cannot be undone:
// then the snapshot has no version until the next capture, which has to bring every block.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/delta/blocks/block.h"
#include "common/model/class_table.h"
#include "common/model/delta_profile.h"
#include "common/model/digest/digest.h"
#include "common/model/weight_version.h"
#include "sender_daemon/capture/density_watch.h"
#include "sender_daemon/capture/full/full_watch.h"
#include "sender_daemon/capture/full/open_reads.h"
#include "sender_daemon/capture/open_delta.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/capture/weight_source.h"

namespace dws {

// A version after capture: everything that sealing needs, and no memory of the trainer.
struct CapturedVersion {
  WeightVersion version;
  std::optional<WeightVersion> base;  // absent: full tensors only
  FullCause full = FullCause::kNone;  // why it is absent
  std::vector<EncodedBlock> blocks;   // by rank block number; empty when there is no base
  std::vector<Digest> before;         // by rank slice; empty when there is no base
  std::vector<Digest> after;
  std::vector<RankSlice> mended;  // whose bytes were not trusted before; only with a base
  uint64_t nnz = 0;               // changed elements; only if it was compared
  uint64_t compared_blocks = 0;   // on a GPU: only what changed was copied
  uint64_t copied_blocks = 0;     // copied whole from a GPU
  uint64_t listed_blocks = 0;     // whose changes the trainer has listed
  CaptureSeconds seconds;
  VersionDensity density;                                // only with a base
  std::array<uint64_t, kBlockModes> payload_bytes = {};  // of `blocks`, by mode
  // The blocks that profile `other` has in place of `blocks`, by rank block number:
  //   wan: those that are smaller class-split; class_tables has their slices' tables, by rank slice
  //   direct: the dense blocks, as raw blocks
  // Empty if there are none, or if only profile fast is encoded.
  DeltaProfile other = DeltaProfile::kFast;
  std::vector<EncodedBlock> other_blocks;
  std::vector<std::optional<ClassTable>> class_tables;
  // Has the frames of slices that were captured as a whole. Null: no frames were made.
  std::shared_ptr<OpenDelta> open_delta;

  // Frees the payloads of blocks whose frames open_delta has: sealing needs no more than the
  // frames.
  void DropFramed(const RankLayout& layout);
};

// One version in the making. Lifecycle: Begin (the constructor) takes the snapshot's gate; then
// Blocks any number of times; then Finish or Undo, which release the gate. The destructor undoes.
// Threads: one at a time.
class Capture {
 public:
  // Encodes blocks for `profile` in addition to fast. `full`, if not kNone, says why no delta is
  // wanted. Without an earlier version the cause is always kFirst. If `on_fetchable` is set, the
  // snapshot shows the delta while it is captured, and OpenDelta calls the function; null: the
  // snapshot does not show it.
  Capture(Snapshot& snapshot, ThreadPool& pool, WeightVersion version,
          DeltaProfile profile = DeltaProfile::kFast, FullCause full = FullCause::kNone,
          std::function<void()> on_fetchable = nullptr);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  WeightVersion version() const { return version_; }
  // Returns whether a delta is made, of what has changed.
  bool compares() const { return full_ == FullCause::kNone; }

  // Captures `refs` from `source`. INVALID_ARGUMENT: a block was captured in this version already,
  // or is twice in `refs`; nothing was captured. Errors of source.Fetch: only Undo is possible
  // afterwards.
  //
  // `on_read`, if not null, is called when the source no longer needs the trainer's memory while
  // blocks are still to be encoded, with the number of changed elements in `refs`; after that
  // nothing fails. Not every source reaches that point.
  using OnRead = std::function<void(uint64_t changed)>;
  Status Blocks(std::span<const BlockRef> refs, WeightSource& source,
                const OnRead& on_read = nullptr);

  // Ends the capture; blocks that were not captured are unchanged. FAILED_PRECONDITION: a first
  // version, or a full one that was asked for, lacks blocks; names the first tensor; the capture
  // stays open.
  Result<CapturedVersion> Finish();

  // Restores the snapshot to its state before the capture; after a block of a full version, leaves
  // it without a version.
  void Undo();

 private:
  struct Scratch;
  // Refuses a block that was captured already, then marks all of `refs`.
  Status Claim(std::span<const BlockRef> refs);
  // Splits `refs` into batches, one per worker at a time. Returns their ends; the last is
  // refs.size().
  std::vector<size_t> Batches(std::span<const BlockRef> refs) const;
  // Trusts a distrusted slice again if all its blocks were captured: sets `after` to a new digest
  // of its bytes and returns true. Otherwise returns false.
  bool Mend(RankSlice slice, Digest& after);
  // Captures blocks that the source has made ready.
  void CaptureReady(std::span<const BlockRef> refs, const WeightSource& source);
  void CaptureBlock(BlockRef ref, const WeightSource& source, Scratch& scratch);
  // Captures a block of a full version.
  void ReplaceBlock(BlockRef ref, const WeightSource& source, Scratch& scratch);
  // Returns whether a block of a full version is also encoded, for FullWatch.
  bool InSample(uint64_t number) const;
  void Encode(BlockRef ref, ByteSpan before, Scratch& scratch);
  // A block of an open delta is captured: makes the frames of its slice if that is whole now.
  void CountCaptured(RankSlice slice);
  // How many of the slice's blocks were captured.
  uint64_t CapturedOf(const RankLayout::SliceEntry& slice) const;
  Status CheckWhole() const;
  CapturedVersion FinishDelta();
  CapturedVersion FinishFull();
  void UndoSteps();
  // Completes the blocks that are kept for readers, before the next version overwrites the rest.
  void CloseKept();
  void CloseGate();

  Snapshot& snapshot_;
  ThreadPool& pool_;
  const WeightVersion version_;
  const FullCause full_;
  const DeltaProfile profile_;  // of a full version: fast
  bool open_ = true;
  bool replaced_ = false;  // the first block of a full version
  bool broken_ = false;    // source.Fetch failed
  uint64_t compared_blocks_ = 0;
  uint64_t copied_blocks_ = 0;
  uint64_t listed_blocks_ = 0;
  CaptureSeconds seconds_;
  std::vector<EncodedBlock> blocks_;        // by rank block number
  std::vector<EncodedBlock> other_blocks_;  // by rank block number; empty with profile fast
  std::vector<Digest> block_differences_;   // by rank block number; of a full version: digests
  std::vector<Digest> replaced_digests_;    // by rank block number; of blocks handed over in parts
  std::shared_ptr<KeptBlocks> kept_;        // null: nothing is kept
  std::vector<uint8_t> captured_;           // by rank block number
  std::shared_ptr<OpenDelta> open_delta_;   // null: it may not be fetched yet
  std::vector<std::atomic<uint32_t>>
      uncaptured_;                // blocks, by rank slice; empty without open_delta_
  std::vector<Scratch> scratch_;  // by worker
};

// Every block of a layout, in order.
std::vector<BlockRef> AllBlocks(const RankLayout& layout);

}  // namespace dws
