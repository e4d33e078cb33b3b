// Each block is decoded, and its changed elements located in memory, before the previous block is
// staged. While the previous block's values and digests are computed, the words of this block are
// prefetched. A block that is staged as a whole is staged at once: nothing of it can be prefetched,
// and its decoded changes would push those of the next block out of the cache. The old words are
// read at each place, not once for all copies: this proves that each copy ends as predicted.
#include "receiver_daemon/weights/frame_stager.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/delta/blocks/diff.h"
#include "common/model/limits.h"
#include "receiver_daemon/weights/block_source.h"

namespace dws {
namespace {

// The most elements of one run. Runs are filled in place, in memory taken some MiB at a time.
constexpr uint64_t kRunElementsMax = 256 * 1024;

// The modes that list changes.
bool ListsChanges(BlockMode mode) {
  return mode != BlockMode::kEmpty && mode != BlockMode::kDenseRaw && mode != BlockMode::kDenseZstd;
}

// Returns whether `change_count` changes of a block are staged as elements, because that takes no
// more bytes than the whole block.
bool IsSparse(const RankLayout::SliceEntry& slice, uint32_t block, uint64_t change_count) {
  const uint32_t element_bytes = ElementBytes(slice.dtype);
  return StagedWrites::ElementsBytes(element_bytes, change_count) <=
         uint64_t{BlockElements(slice.elements, block)} * element_bytes;
}

}  // namespace

FrameStager::Staged FrameStager::Stage(const RankLayout::SliceEntry& slice,
                                       std::span<const SegmentMap> places,
                                       const SpooledFrame& frame, const Spool& spool) {
  DWS_CHECK(!places.empty());
  if (budget_.passed()) writes_.Clear();
  Staged staged;
  staged.differences.resize(places.size());
  staged.stager = this;
  staged.first_run = writes_.run_count();
  const Result<std::vector<EncodedBlockView>> blocks =
      ReadBlocks(slice, frame, spool, frame_bytes_);
  staged.status = blocks.status();
  if (blocks.ok()) {
    staged.status = StageBlocks(
        {.slice = slice, .places = places, .spooled = frame, .staged = staged}, *blocks);
  }
  DWS_CHECK(writes_.run_count() >= staged.first_run);
  staged.run_count = writes_.run_count() - staged.first_run;
  return staged;
}

Status FrameStager::StageBlocks(const Frame& frame, std::span<const EncodedBlockView> blocks) {
  uint64_t listed = 0;
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    if (!ListsChanges(blocks[i].mode)) continue;
    if (!IsSparse(frame.slice, frame.spooled.entry.first_block + i, blocks[i].nnz)) continue;
    listed += blocks[i].nnz;
  }
  open_.assign(frame.places.size(), OpenRun{.room = {}, .base = nullptr, .expected = listed});

  const PlannedBlock* planned = nullptr;
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    PlannedBlock& ahead = planned_[planned == &planned_[0] ? 1 : 0];
    DWS_RETURN_IF_ERROR(Plan(frame, frame.spooled.entry.first_block + i, blocks[i], ahead));
    if (ahead.decoded.kind == DecodedBlock::Kind::kNothing) continue;
    if (planned != nullptr) StagePlanned(frame, *planned, &ahead);
    planned = &ahead;
    if (ahead.located.by_words) continue;
    StagePlanned(frame, ahead, nullptr);
    planned = nullptr;
  }
  if (planned != nullptr) StagePlanned(frame, *planned, nullptr);
  return OkStatus();
}

Status FrameStager::Plan(const Frame& frame, uint32_t block, const EncodedBlockView& view,
                         PlannedBlock& planned) {
  planned.block = block;
  DWS_RETURN_IF_ERROR(DecodeAgainst(frame.slice, frame.spooled, &frame.places[0], block, view,
                                    planned.decoded, before_));
  planned.located = Locate(frame, 0, planned, planned.offsets);
  return OkStatus();
}

FrameStager::Located FrameStager::Locate(const Frame& frame, size_t place,
                                         const PlannedBlock& planned,
                                         std::vector<uint32_t>& offsets) const {
  const DecodedBlock& decoded = planned.decoded;
  if (decoded.kind != DecodedBlock::Kind::kSteps && decoded.kind != DecodedBlock::Kind::kValues) {
    return {};
  }
  if (!IsSparse(frame.slice, planned.block, decoded.positions.size())) return {};
  const SegmentMap& map = frame.places[place];
  const uint64_t first = uint64_t{planned.block} * limits::kBlockElements;
  const uint64_t count = BlockElements(frame.slice.elements, planned.block);
  offsets.resize(std::max(offsets.size(), decoded.positions.size()));
  if (!map.WordOffsets(first, count, decoded.positions, offsets.data())) return {};
  return {.by_words = true,
          .memory = map.Address(first),
          .offsets = std::span(offsets).first(decoded.positions.size())};
}

void FrameStager::StagePlanned(const Frame& frame, const PlannedBlock& planned,
                               const PlannedBlock* ahead) {
  Located located = planned.located;
  for (size_t p = 0; p < frame.places.size(); ++p) {
    Located next;
    if (p + 1 < frame.places.size()) {
      next = Locate(frame, p + 1, planned, place_offsets_[p % 2]);
    } else if (ahead != nullptr) {
      next = ahead->located;
    }
    if (located.by_words) {
      StageWords(frame, p, planned, located, next);
    } else {
      StageWhole(frame, p, planned);
    }
    located = next;
  }
}

FrameStager::OpenRun* FrameStager::RoomFor(size_t place, uint32_t element_bytes,
                                           const Located& located) {
  OpenRun& run = open_[place];
  const uint64_t count = located.offsets.size();
  // Slices ascend in memory from block to block, and a run's offsets have 32 bits.
  const bool fits = run.room.left >= count && located.memory >= run.base &&
                    static_cast<uint64_t>(located.memory - run.base) + located.offsets.back() <=
                        std::numeric_limits<uint32_t>::max();
  if (!fits) {
    if (budget_.passed()) return nullptr;
    const uint64_t count_max = std::clamp(run.expected, count, std::max(count, kRunElementsMax));
    run.room = writes_.Open(located.memory, element_bytes, static_cast<uint32_t>(count),
                            static_cast<uint32_t>(count_max));
    if (run.room.left == 0) return nullptr;
    run.base = located.memory;
  }
  run.expected -= std::min(run.expected, count);
  return &run;
}

void FrameStager::StageWords(const Frame& frame, size_t place, const PlannedBlock& planned,
                             const Located& located, const Located& next) {
  const uint32_t element_bytes = ElementBytes(frame.slice.dtype);
  const uint32_t count = static_cast<uint32_t>(located.offsets.size());
  OpenRun* const run = RoomFor(place, element_bytes, located);
  DWS_CHECK(run == nullptr || (run->room.left >= count && run->base <= located.memory));
  if (run == nullptr) {
    dry_values_.resize(std::max<size_t>(dry_values_.size(), size_t{count} * element_bytes));
  }
  frame.staged.differences[place] += PredictElements(
      frame.slice.dtype, planned.decoded, located.places(),
      frame.slice.BlockFirstWord(planned.block),
      run == nullptr ? dry_values_.data() : run->room.values, next.places(), predict_);
  if (run == nullptr) return;
  const uint32_t base = static_cast<uint32_t>(located.memory - run->base);
  for (uint32_t i = 0; i < count; ++i) run->room.offsets[i] = base + located.offsets[i];
  writes_.Fill(run->room, count);
}

void FrameStager::StageWhole(const Frame& frame, size_t place, const PlannedBlock& planned) {
  const RankLayout::SliceEntry& slice = frame.slice;
  const SegmentMap& map = frame.places[place];
  const ByteSpan before = OldBlock(slice, map, planned.block, before_);
  ByteSpan after = planned.decoded.dense;
  if (planned.decoded.kind != DecodedBlock::Kind::kDense) {
    after_.assign(before.begin(), before.end());
    ApplyBlock(slice.dtype, planned.decoded, after_);
    after = after_;
  }
  DWS_CHECK(after.size() == before.size());
  frame.staged.differences[place] +=
      DiffBlock(slice.dtype, before, after, slice.BlockFirstWord(planned.block), changes_);
  if (changes_.size() == 0 || budget_.passed()) return;
  const uint64_t first = uint64_t{planned.block} * limits::kBlockElements;
  const uint64_t pieces = map.PieceCount(first, after.size() / map.element_bytes());
  const uint64_t bytes = StagedWrites::ElementsBytes(map.element_bytes(), changes_.size());
  if (after.size() + pieces * StagedWrites::kRunBytes < bytes) {
    map.StageAll(first, after, writes_);
  } else {
    map.StageElements(first, changes_.positions, after, writes_);
  }
}

}  // namespace dws
