#include "receiver_daemon/weights/frame_items.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/delta/decoder.h"
#include "common/model/limits.h"
#include "receiver_daemon/weights/block_source.h"

namespace dws {
namespace {

// Bytes of frames that are open at a time: enough to keep workers and device busy.
constexpr uint64_t kBytesInHand = uint64_t{32} << 20;
// Bytes of inflated blocks that are held at a time; exceeded by one frame at most.
constexpr uint64_t kInflatedBytesInHand = uint64_t{64} << 20;

cuda::KernelClassTable TableOf(const ClassTable& classes) {
  cuda::KernelClassTable table{.hot_below = classes.hot_below,
                               .hot_scale = classes.hot_scale,
                               .threshold_count = classes.threshold_count};
  std::copy(classes.thresholds.begin(), classes.thresholds.end(), table.thresholds);
  return table;
}

cuda::Element ElementOf(DType dtype) {
  return {.bytes = static_cast<uint8_t>(ElementBytes(dtype)),
          .is_float = static_cast<uint8_t>(MappingOf(dtype) == Mapping::kFloat ? 1 : 0)};
}

// One frame that has been read.
struct OpenFrame {
  std::vector<std::byte> buffer;
  std::vector<EncodedBlockView> blocks;
  std::vector<DecodedBlock> inflated;  // decompressed blocks; `blocks` point into them
  cuda::KernelClassTable table;
};

bool Compressed(const EncodedBlockView& block) { return block.mode == BlockMode::kDenseZstd; }

uint64_t InflatedBytes(const RankLayout::SliceEntry& slice, const OpenFrame& open) {
  return static_cast<uint64_t>(std::count_if(open.blocks.begin(), open.blocks.end(), Compressed)) *
         limits::kBlockElements * ElementBytes(slice.dtype);
}

// Replaces compressed blocks, which the device cannot decode, by raw ones.
Status Inflate(const RankLayout::SliceEntry& slice, const SpooledFrame& frame, OpenFrame& open) {
  DWS_CHECK(open.inflated.empty());
  // `blocks` point into the elements of `inflated`, so these must not move.
  open.inflated.reserve(
      static_cast<size_t>(std::count_if(open.blocks.begin(), open.blocks.end(), Compressed)));
  for (uint32_t i = 0; i < open.blocks.size(); ++i) {
    EncodedBlockView& block = open.blocks[i];
    if (!Compressed(block)) continue;
    DecodedBlock& decoded = open.inflated.emplace_back();
    const uint32_t elements = BlockElements(slice.elements, frame.entry.first_block + i);
    DWS_RETURN_IF_ERROR(DecodeBlock(slice.dtype, elements, block, decoded));
    block = {
        .mode = BlockMode::kDenseRaw, .nnz = elements, .parameters = 0, .payload = decoded.dense};
  }
  return OkStatus();
}

// Checks what the kernels rely on in a block's description (StageBlock).
Status CheckBlock(const RankLayout::SliceEntry& slice, const SpooledFrame& frame, uint32_t block,
                  const EncodedBlockView& view) {
  const uint32_t elements = BlockElements(slice.elements, block);
  if (static_cast<size_t>(view.mode) >= kBlockModes) {
    return UnimplementedError("block {}: mode {} is not known", block, static_cast<int>(view.mode));
  }
  if (view.mode == BlockMode::kEmpty) {
    if (view.nnz == 0 && view.payload.empty()) return OkStatus();
    return DataLossError("block {}: empty, with {} changes and {} bytes", block, view.nnz,
                         view.payload.size());
  }
  if (view.nnz == 0 || view.nnz > elements) {
    return DataLossError("block {}: {} changes in {} elements", block, view.nnz, elements);
  }
  if (view.mode == BlockMode::kClassSplit &&
      (!frame.classes.has_value() || MappingOf(slice.dtype) != Mapping::kFloat)) {
    return DataLossError("block {}: class-split: its slice has no class table, or no floats",
                         block);
  }
  return OkStatus();
}

Status Open(const FrameSet& set, const SpooledFrame& frame, OpenFrame& open) {
  const RankLayout::SliceEntry& slice = set.layout.slice(frame.slice);
  DWS_ASSIGN_OR_RETURN(open.blocks, ReadBlocks(slice, frame, set.spool, open.buffer));
  for (uint32_t i = 0; i < open.blocks.size(); ++i) {
    DWS_RETURN_IF_ERROR(CheckBlock(slice, frame, frame.entry.first_block + i, open.blocks[i]));
  }
  if (frame.classes.has_value()) open.table = TableOf(*frame.classes);
  return OkStatus();
}

// Returns how many items a frame has: one for each block that is not empty, at each of the slice's
// places.
size_t ItemCount(const FrameSet& set, const SlicePlaces<cuda::Place>& places, size_t frame_number,
                 const OpenFrame& open) {
  const auto blocks =
      std::count_if(open.blocks.begin(), open.blocks.end(),
                    [](const EncodedBlockView& block) { return block.mode != BlockMode::kEmpty; });
  return static_cast<size_t>(blocks) * places.Count(set.rank, set.frames[frame_number].slice);
}

void WriteItems(const FrameSet& set, const SlicePlaces<cuda::Place>& places, size_t frame_number,
                size_t first_result, const OpenFrame& open, std::span<cuda::StageItem> items) {
  cuda::StageItem* item = items.data();
  const SpooledFrame& frame = set.frames[frame_number];
  const RankLayout::SliceEntry& slice = set.layout.slice(frame.slice);
  const size_t first_place = places.First(set.rank, frame.slice);
  for (size_t p = 0; p < places.Count(set.rank, frame.slice); ++p) {
    for (uint32_t i = 0; i < open.blocks.size(); ++i) {
      const EncodedBlockView& view = open.blocks[i];
      if (view.mode == BlockMode::kEmpty) continue;
      const uint32_t block = frame.entry.first_block + i;
      *item++ = {.block = {.first_element = uint64_t{block} * limits::kBlockElements,
                           .first_word = slice.BlockFirstWord(block),
                           .elements = BlockElements(slice.elements, block),
                           .nnz = view.nnz,
                           .place = static_cast<uint32_t>(first_place + p),
                           .result = static_cast<uint32_t>(first_result + p),
                           .parameters = view.parameters,
                           .mode = static_cast<uint8_t>(view.mode),
                           .element = ElementOf(slice.dtype)},
                 .payload = view.payload,
                 .table = view.mode == BlockMode::kClassSplit ? &open.table : nullptr,
                 .group = static_cast<uint32_t>(frame_number)};
    }
  }
  DWS_CHECK(item == items.data() + items.size());
}

// Frames whose compressed blocks are decompressed together.
struct FrameBatch {
  const FrameSet& set;
  const SlicePlaces<cuda::Place>& places;
  const FrameResults& results;
  size_t first_frame = 0;  // of the set
  std::span<OpenFrame> open;
};

Status AddBatch(const FrameBatch& batch, ThreadPool& pool, std::span<Status> statuses,
                const std::function<Status(std::span<const cuda::StageItem>)>& add) {
  const size_t begin = batch.first_frame;
  DWS_CHECK(begin + batch.open.size() <= batch.set.frames.size());
  pool.ParallelFor(batch.open.size(), [&](size_t i, size_t) {
    const SpooledFrame& frame = batch.set.frames[begin + i];
    Status& status = statuses[begin + i];
    if (status.ok()) status = Inflate(batch.set.layout.slice(frame.slice), frame, batch.open[i]);
    if (!status.ok()) batch.open[i].blocks.clear();
  });
  std::vector<size_t> first_item(batch.open.size() + 1);
  for (size_t i = 0; i < batch.open.size(); ++i) {
    first_item[i + 1] =
        first_item[i] + ItemCount(batch.set, batch.places, begin + i, batch.open[i]);
  }
  std::vector<cuda::StageItem> items(first_item.back());
  pool.ParallelFor(batch.open.size(), [&](size_t i, size_t) {
    WriteItems(batch.set, batch.places, begin + i, batch.results.first[begin + i], batch.open[i],
               std::span(items).subspan(first_item[i], first_item[i + 1] - first_item[i]));
  });
  const Status added = add(items);
  for (OpenFrame& open : batch.open) open.inflated = {};
  return added;
}

}  // namespace

FrameResults NumberResults(const FrameSet& set, const SlicePlaces<cuda::Place>& places) {
  FrameResults results;
  size_t next = 0;
  for (const SpooledFrame& frame : set.frames) {
    results.first.push_back(next);
    next += places.Count(set.rank, frame.slice);
  }
  results.first.push_back(next);
  return results;
}

Status ForEachFrameItems(const FrameSet& set, const SlicePlaces<cuda::Place>& places,
                         const FrameResults& results, ThreadPool& pool, std::span<Status> statuses,
                         const std::function<Status(std::span<const cuda::StageItem>)>& add) {
  DWS_CHECK(statuses.size() == set.frames.size());
  DWS_CHECK(results.first.size() == set.frames.size() + 1);
  for (size_t begin = 0; begin < set.frames.size();) {
    size_t end = begin;
    for (uint64_t bytes = 0; end < set.frames.size() && bytes < kBytesInHand; ++end) {
      bytes += set.frames[end].entry.size_bytes;
    }
    const auto held = [&](size_t frame) {
      return places.Count(set.rank, set.frames[frame].slice) > 0;
    };
    std::vector<OpenFrame> open(end - begin);
    pool.ParallelFor(open.size(), [&](size_t i, size_t) {
      if (held(begin + i)) statuses[begin + i] = Open(set, set.frames[begin + i], open[i]);
    });
    for (size_t first = 0; first < open.size();) {
      size_t last = first;
      for (uint64_t bytes = 0; last < open.size() && bytes < kInflatedBytesInHand; ++last) {
        const RankSlice slice = set.frames[begin + last].slice;
        bytes += InflatedBytes(set.layout.slice(slice), open[last]);
      }
      const FrameBatch batch{.set = set,
                             .places = places,
                             .results = results,
                             .first_frame = begin + first,
                             .open = std::span(open).subspan(first, last - first)};
      DWS_RETURN_IF_ERROR(AddBatch(batch, pool, statuses, add));
      first = last;
    }
    begin = end;
  }
  return OkStatus();
}

}  // namespace dws
