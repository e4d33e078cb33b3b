// Verifies and stages one fetched frame of a delta, for one worker: makes staged writes and
// predicted digests. Reads only the parts of the engine's memory that it needs, in place: for a
// sparse block the words that change, for a class-split block the whole block, once. Never writes
// there.
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
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/spool/spool.h"
#include "common/spool/spooled_frame.h"

namespace dws {

// All workers share the budget. Once it is exceeded, no write is kept; digests are still predicted.
// Lifecycle: stages frame after frame, reusing its memory; then its writes are taken. Threads: one.
class FrameStager {
 public:
  // The result of one frame. Its runs are [first_run, first_run + run_count) of `writes`.
  struct Staged {
    Status status;                    // DATA_LOSS or another decoder error: the frame is damaged
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
    bool by_words = false;  // otherwise the whole block is read
    std::byte* memory = nullptr;
    std::span<const uint32_t> offsets;

    ElementPlaces places() const {
      return by_words ? ElementPlaces{.memory = memory, .offsets = offsets} : ElementPlaces{};
    }
  };
  // A decoded block, and its changed elements at the first place.
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
    uint64_t expected = 0;  // upper bound of the number of elements to come
  };
  // The frame that is being staged.
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
  // Returns room for `located`; nullptr: the budget has none.
  OpenRun* RoomFor(size_t place, uint32_t element_bytes, const Located& located);

  StagingBudget& budget_;
  StagedWrites writes_;
  std::vector<std::byte> frame_bytes_;
  PlannedBlock planned_[2];
  std::vector<OpenRun> open_;               // by place
  std::vector<uint32_t> place_offsets_[2];  // of the places after the first
  std::vector<std::byte> before_;
  std::vector<std::byte> after_;
  std::vector<std::byte> dry_values_;
  BlockChanges changes_;
  PredictScratch predict_;
};

}  // namespace dws
