// From one fetched frame of a delta to staged writes and predicted digests: verify and stage, one
// worker's share. Reads of the engine's memory what it must: of sparse blocks the words that
// change, of class-split blocks the block, once; straight from where it lies. Writes nothing there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/blocks/predict.h"
#include "common/memory/segment_map.h"
#include "common/memory/staged_writes.h"
#include "common/model/digest.h"
#include "common/model/layout.h"
#include "receiver_daemon/spool/spool.h"
#include "receiver_daemon/spool/spooled_frame.h"

namespace dws {

// Past the budget, which all workers share, nothing is kept any more, only digests are predicted.
// Lifecycle: stages frame after frame, reusing its memory; then its writes are taken. Threads: one.
class FrameStager {
 public:
  // What one frame came to. Its runs are [first_run, first_run + run_count) of `writes`.
  struct Staged {
    Status status;                    // DATA_LOSS and the decoder's others: the frame is damaged
    std::vector<Digest> differences;  // by place
    const FrameStager* stager = nullptr;
    size_t first_run = 0;
    size_t run_count = 0;
  };

  explicit FrameStager(StagingBudget& budget) : budget_(budget), writes_(budget) {}

  // `places` (at least one) hold `slice`.
  Staged Stage(const RankLayout::SliceEntry& slice, std::span<const SegmentMap> places,
               const SpooledFrame& frame, const Spool& spool);

  const StagedWrites& writes() const { return writes_; }
  StagedWrites TakeWrites() { return std::move(writes_); }

 private:
  // The changed elements of a block at one place.
  struct Located {
    bool by_words = false;  // else the whole block is read
    std::byte* memory = nullptr;
    std::span<const uint32_t> offsets;

    ElementPlaces places() const {
      return by_words ? ElementPlaces{.memory = memory, .offsets = offsets} : ElementPlaces{};
    }
  };
  // A decoded block, found at its first place.
  struct PlannedBlock {
    uint32_t block = 0;
    DecodedBlock decoded;
    std::vector<uint32_t> offsets;
    Located located;
  };
  // The run that grows at one place, from block to block.
  struct OpenRun {
    StagedWrites::Room room;
    std::byte* base = nullptr;
    uint64_t expected = 0;  // elements that the frame's blocks still bring, at most
  };
  // The frame at hand.
  struct Frame {
    const RankLayout::SliceEntry& slice;
    std::span<const SegmentMap> places;
    const SpooledFrame& spooled;
    Staged& staged;
  };

  Status StageBlocks(const Frame& frame, std::span<const EncodedBlockView> blocks);
  Status Plan(const Frame& frame, uint32_t block, const EncodedBlockView& view,
              PlannedBlock& planned);
  Located Locate(const Frame& frame, size_t place, const PlannedBlock& planned,
                 std::vector<uint32_t>& offsets) const;
  // `ahead` is the block after this one, if any.
  void StagePlanned(const Frame& frame, const PlannedBlock& planned, const PlannedBlock* ahead);
  void StageWords(const Frame& frame, size_t place, const PlannedBlock& planned,
                  const Located& located, const Located& next);
  void StageWhole(const Frame& frame, size_t place, const PlannedBlock& planned);
  // Room for `located`; nullptr when there is no budget for it.
  OpenRun* RoomFor(size_t place, uint32_t element_bytes, const Located& located);

  StagingBudget& budget_;
  StagedWrites writes_;
  std::vector<std::byte> frame_bytes_;
  PlannedBlock planned_[2];
  std::vector<OpenRun> open_;               // by place
  std::vector<uint32_t> place_offsets_[2];  // of places behind the first
  std::vector<std::byte> before_;
  std::vector<std::byte> after_;
  std::vector<std::byte> dry_values_;
  BlockChanges changes_;
  PredictScratch predict_;
};

}  // namespace dws
