// In three passes over blocks, tiles, and blocks again, each by all workers: the amax of a tile has
// to be known before the first of its codes is made.
#include "sender_daemon/views/view_changes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/model/limits.h"
#include "sender_daemon/views/steps.h"

namespace dws {
namespace {

constexpr uint64_t kBlock = limits::kBlockElements;
constexpr uint16_t kInfinity = 0x7F80;  // of BF16

uint16_t LoadElement(ByteSpan elements, uint64_t number) {
  return LoadLe<uint16_t>(elements.data() + number * sizeof(uint16_t));
}

// A packed element, or a scale, of 1, 2 or 4 bytes.
uint32_t LoadBytes(const std::byte* from, size_t bytes) {
  if (bytes == 1) return LoadLe<uint8_t>(from);
  return bytes == 2 ? LoadLe<uint16_t>(from) : LoadLe<uint32_t>(from);
}

// The scale of a tile with this amax.
quantise::TileScale ScaleOf(const ChangedSlice& changed, uint64_t tile, uint16_t amax) {
  const quantise::TileGrid& grid = *changed.slice->grid;
  const uint64_t matrix = tile / (grid.tile_count() / grid.shape().matrices);
  return quantise::ScaleOf(grid.recipe(), amax,
                           changed.matrix_amax.empty() ? 0 : changed.matrix_amax[matrix]);
}

void Append(uint32_t value, size_t bytes, std::vector<std::byte>& to) {
  const auto* const from = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), from, from + bytes);
}

}  // namespace

// What one worker reuses from block to block.
struct ViewChanges::Scratch {
  DecodedBlock decoded;
  std::vector<std::vector<Moved>> moved;  // by slice
  // For each element whose code is made again: its number in the output's part of the slice, its
  // bits, the amax of its tile, its code.
  std::vector<uint32_t> candidates;
  std::vector<uint16_t> elements;
  std::vector<uint16_t> amax;
  std::vector<uint16_t> matrix_amax;
  std::vector<std::byte> codes;
  std::vector<uint32_t> before;  // what the codes are in now: packed elements
  ListedWords words;
};

ViewChanges::ViewChanges(Snapshot& trainer, Snapshot& view, ThreadPool& pool)
    : trainer_(trainer),
      view_(view),
      pool_(pool),
      scratch_(pool.worker_count()),
      numbers_(view.layout().block_count()) {}

ViewChanges::~ViewChanges() = default;

std::vector<BlockRef> ViewChanges::Find(std::span<const ChangedSlice> slices) {
  for (const Output& output : outputs_) {
    numbers_[view_.layout().slice(output.to.slice).first_block + output.to.block] = 0;
  }
  outputs_.clear();
  slices_ = slices;
  tiles_.assign(slices.size(), {});
  ranges_.assign(slices.size(), {});
  for (Scratch& scratch : scratch_) scratch.moved.assign(slices.size(), {});
  std::vector<Work> works;
  std::vector<size_t> ends;  // of each slice's
  for (size_t s = 0; s < slices.size(); ++s) {
    for (uint32_t block = 0; block < slices[s].steps.size(); ++block) {
      if (slices[s].steps[block].mode == BlockMode::kEmpty) continue;
      works.push_back({.slice = s, .block = block});
    }
    ends.push_back(works.size());
  }
  pool_.ParallelFor(works.size(), [&](size_t work, size_t worker) {
    if (slices_[works[work].slice].slice->grid.has_value()) {
      FindMoved(works[work], scratch_[worker]);
    }
  });
  pool_.ParallelFor(slices.size(), [this](size_t slice, size_t) { MoveTiles(slice); });
  for (size_t s = 0; s < slices.size(); ++s) {
    const size_t begin = s == 0 ? 0 : ends[s - 1];
    FindOutputs(s, std::span<const Work>(works).subspan(begin, ends[s] - begin));
  }
  pool_.ParallelFor(outputs_.size(), [this](size_t number, size_t worker) {
    Output& output = outputs_[number];
    Scratch& scratch = scratch_[worker];
    if (output.kind == Output::Kind::kCopy) ListCopy(output, scratch);
    if (output.kind == Output::Kind::kScales) ListScales(output);
    if (output.kind == Output::Kind::kCodes) ListCodes(output, scratch);
    const RankLayout::SliceEntry& to = view_.layout().slice(output.to.slice);
    const std::optional<Digest> difference = DifferenceOf(
        to.dtype, ChangesOf(output), view_.BlockBytes(output.to.slice, output.to.block),
        to.BlockFirstWord(output.to.block), scratch.words);
    DWS_CHECK(difference.has_value());
    output.difference = *difference;
  });
  std::vector<BlockRef> refs;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    outputs_[i].works = {};
    if (outputs_[i].positions.empty()) continue;
    const BlockRef ref = outputs_[i].to;
    numbers_[view_.layout().slice(ref.slice).first_block + ref.block] =
        static_cast<uint32_t>(i + 1);
    refs.push_back(ref);
  }
  return refs;
}

void ViewChanges::Decode(size_t slice, uint32_t block, Scratch& scratch) const {
  DecodeSteps(From(slice), block, slices_[slice].steps[block], scratch.decoded);
}

void ViewChanges::FindMoved(Work& work, Scratch& scratch) const {
  const ChangedSlice& slice = slices_[work.slice];
  Decode(work.slice, work.block, scratch);
  quantise::TileCursor cursor(*slice.slice->grid);
  std::vector<Moved>& moved = scratch.moved[work.slice];
  const DecodedBlock& decoded = scratch.decoded;
  const ByteSpan block = trainer_.BlockBytes(slice.slice->from, work.block);
  work.positions.assign(decoded.positions.begin(), decoded.positions.end());
  work.values.resize(decoded.positions.size());
  // They lie apart: in a loop of their own many are on their way from memory at once.
  for (size_t i = 0; i < decoded.positions.size(); ++i) {
    work.values[i] = LoadElement(block, decoded.positions[i]);
  }
  if (slice.amax.empty()) return;
  work.amax.resize(decoded.positions.size());
  for (size_t i = 0; i < decoded.positions.size(); ++i) {
    const uint64_t element = work.block * kBlock + decoded.positions[i];
    const uint16_t after = work.values[i];
    const uint16_t before = BeforeStep(after, decoded.values[i]);
    const uint64_t tile = cursor.TileOf(element);
    const uint16_t amax = slice.amax[tile];
    work.amax[i] = amax;
    if (Magnitude(after) > amax) {
      moved.push_back({.tile = tile, .magnitude = Magnitude(after)});
    } else if (Magnitude(before) >= amax && Magnitude(after) < amax) {
      moved.push_back({.tile = tile});
    }
  }
}

void ViewChanges::MoveTiles(size_t slice) {
  const ChangedSlice& changed = slices_[slice];
  if (!changed.slice->grid.has_value()) return;
  const quantise::TileGrid& grid = *changed.slice->grid;
  std::vector<Moved> moved;
  for (const Scratch& scratch : scratch_) {
    moved.insert(moved.end(), scratch.moved[slice].begin(), scratch.moved[slice].end());
  }
  std::sort(moved.begin(), moved.end(), [](const Moved& a, const Moved& b) {
    return a.tile != b.tile ? a.tile < b.tile : a.magnitude < b.magnitude;
  });
  const ByteSpan elements = trainer_.SliceBytes(changed.slice->from);
  for (size_t i = 0; i < moved.size();) {
    // The entries of one tile: if it may have shrunk that is the first one, its growth the last.
    const uint64_t tile = moved[i].tile;
    const bool shrunk = moved[i].magnitude == Moved::kShrunk;
    while (i + 1 < moved.size() && moved[i + 1].tile == tile) ++i;
    const uint16_t amax = shrunk ? quantise::TileAmax(ActiveInstructionSet(), grid, elements, tile)
                                 : moved[i].magnitude;
    ++i;
    const uint16_t before = std::exchange(changed.amax[tile], amax);
    // Other tiles keep the scale; the amax before stands for theirs, and no element is infinite.
    if (std::max(before, amax) < kInfinity &&
        ScaleOf(changed, tile, before) == ScaleOf(changed, tile, amax)) {
      continue;
    }
    tiles_[slice].push_back(tile);
    const quantise::TileArea area = grid.AreaOf(tile);
    for (uint64_t row = 0; row < area.rows; ++row) {
      const uint64_t begin = area.begin + row * area.stride;
      ranges_[slice].push_back({.begin = begin, .end = begin + area.columns});
    }
  }
  // Neighbouring squares share rows, so their ranges must be sorted.
  std::sort(ranges_[slice].begin(), ranges_[slice].end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
}

void ViewChanges::FindOutputs(size_t slice, std::span<const Work> works) {
  const quantise::ViewLayout::Slice& view = *slices_[slice].slice;
  if (!view.grid.has_value()) {
    for (size_t i = 0; i < works.size(); ++i) {
      outputs_.push_back({.kind = Output::Kind::kCopy,
                          .slice = slice,
                          .to = {.slice = view.codes, .block = works[i].block},
                          .works = works.subspan(i, 1)});
    }
    return;
  }
  const uint32_t packed = view.grid->packed();
  std::vector<uint32_t> blocks;
  for (const Work& work : works) blocks.push_back(work.block / packed);
  for (const Range& range : ranges_[slice]) {
    for (uint64_t b = range.begin / kBlock / packed; b <= (range.end - 1) / kBlock / packed; ++b) {
      blocks.push_back(static_cast<uint32_t>(b));
    }
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  size_t begin = 0;
  for (const uint32_t block : blocks) {
    size_t end = begin;
    while (end < works.size() && works[end].block / packed == block) ++end;
    outputs_.push_back({.kind = Output::Kind::kCodes,
                        .slice = slice,
                        .to = {.slice = view.codes, .block = block},
                        .works = works.subspan(begin, end - begin)});
    begin = end;
  }
  uint32_t next = 0;
  for (const uint64_t tile : tiles_[slice]) {
    const auto block = static_cast<uint32_t>(tile / kBlock);
    if (block < next) continue;
    outputs_.push_back({.kind = Output::Kind::kScales,
                        .slice = slice,
                        .to = {.slice = *view.scales, .block = block}});
    next = block + 1;
  }
}

void ViewChanges::ListCopy(Output& output, Scratch& scratch) const {
  const RankLayout::SliceEntry& from = From(output.slice);
  const uint32_t block = output.to.block;
  Decode(output.slice, block, scratch);
  const DecodedBlock& decoded = scratch.decoded;
  const ByteSpan bytes = trainer_.BlockBytes(slices_[output.slice].slice->from, block);
  // The view may have been made from other bytes than the trainer's snapshot had, if a bit flipped
  // in one of them.
  const ByteSpan old = view_.BlockBytes(output.to.slice, output.to.block);
  const size_t width = ElementBytes(from.dtype);
  for (const uint16_t position : decoded.positions) {
    const ByteSpan before = old.subspan(position * width, width);
    const ByteSpan after = bytes.subspan(position * width, width);
    if (std::ranges::equal(before, after)) continue;
    output.positions.push_back(position);
    output.before.insert(output.before.end(), before.begin(), before.end());
    output.after.insert(output.after.end(), after.begin(), after.end());
  }
}

void ViewChanges::ListScales(Output& output) const {
  const ChangedSlice& changed = slices_[output.slice];
  const ByteSpan scales = view_.SliceBytes(output.to.slice);
  const size_t bytes = ElementBytes(view_.layout().slice(output.to.slice).dtype);
  const std::vector<uint64_t>& tiles = tiles_[output.slice];
  const uint64_t first = output.to.block * kBlock;
  for (auto tile = std::lower_bound(tiles.begin(), tiles.end(), first);
       tile != tiles.end() && *tile < first + kBlock; ++tile) {
    const uint32_t before = LoadBytes(scales.data() + *tile * bytes, bytes);
    const uint32_t after = ScaleOf(changed, *tile, changed.amax[*tile]).stored;
    if (after == before) continue;
    output.positions.push_back(static_cast<uint16_t>(*tile - first));
    Append(before, bytes, output.before);
    Append(after, bytes, output.after);
  }
}

// Finds the changed elements, and all elements of the tiles in tiles_; ascending, each once.
void ViewChanges::FindCandidates(const Output& output, Scratch& scratch) const {
  const ChangedSlice& changed = slices_[output.slice];
  const quantise::TileGrid& grid = *changed.slice->grid;
  const uint64_t elements =
      uint64_t{grid.packed()} * kBlock;  // of the slice, in one block of codes
  const uint64_t first = output.to.block * elements;
  const std::vector<Range>& ranges = ranges_[output.slice];
  auto range = std::partition_point(ranges.begin(), ranges.end(),
                                    [first](const Range& r) { return r.end <= first; });
  const ByteSpan bytes = trainer_.SliceBytes(changed.slice->from);
  quantise::TileCursor cursor(grid);
  scratch.candidates.clear();
  scratch.elements.clear();
  scratch.amax.clear();
  uint64_t next = first;
  const auto add_ranges = [&](uint64_t until) {  // adds the ranges that begin before `until`
    for (; range != ranges.end() && range->begin < until; ++range) {
      next = std::max(next, range->begin);
      for (; next < std::min(range->end, first + elements); ++next) {
        scratch.candidates.push_back(static_cast<uint32_t>(next - first));
        scratch.elements.push_back(LoadElement(bytes, next));
        scratch.amax.push_back(changed.amax[cursor.TileOf(next)]);
      }
    }
  };
  for (const Work& work : output.works) {
    const uint64_t end = (work.block + 1) * kBlock;
    if (next <= work.block * kBlock && (range == ranges.end() || range->begin >= end)) {
      const auto begin = static_cast<uint32_t>(work.block * kBlock - first);
      for (const uint16_t position : work.positions) scratch.candidates.push_back(begin + position);
      scratch.elements.insert(scratch.elements.end(), work.values.begin(), work.values.end());
      scratch.amax.insert(scratch.amax.end(), work.amax.begin(), work.amax.end());
      continue;
    }
    for (size_t i = 0; i < work.positions.size(); ++i) {
      const uint64_t element = work.block * kBlock + work.positions[i];
      add_ranges(element + 1);
      if (element < next) continue;
      scratch.candidates.push_back(static_cast<uint32_t>(element - first));
      scratch.elements.push_back(work.values[i]);
      scratch.amax.push_back(work.amax[i]);
      next = element + 1;
    }
  }
  add_ranges(first + elements);
}

void ViewChanges::FindMatrixAmax(const Output& output, Scratch& scratch) const {
  const ChangedSlice& changed = slices_[output.slice];
  const quantise::TileGrid& grid = *changed.slice->grid;
  scratch.matrix_amax.clear();
  if (changed.matrix_amax.empty()) return;
  const uint64_t first = output.to.block * uint64_t{grid.packed()} * kBlock;
  const uint64_t elements = grid.shape().rows * grid.shape().columns;
  size_t matrix = first / elements;
  uint64_t end = (matrix + 1) * elements;
  for (const uint32_t candidate : scratch.candidates) {
    while (first + candidate >= end) {
      ++matrix;
      end += elements;
    }
    scratch.matrix_amax.push_back(changed.matrix_amax[matrix]);
  }
}

void ViewChanges::ListCodes(Output& output, Scratch& scratch) const {
  const ChangedSlice& changed = slices_[output.slice];
  const quantise::TileGrid& grid = *changed.slice->grid;
  FindCandidates(output, scratch);
  const size_t count = scratch.candidates.size();
  const uint32_t packed = static_cast<uint32_t>(std::countr_zero(grid.packed()));
  const ByteSpan codes = view_.BlockBytes(output.to.slice, output.to.block);
  const size_t bytes = ElementBytes(view_.layout().slice(output.to.slice).dtype);
  scratch.codes.resize(count);
  scratch.before.resize(count);
  for (size_t i = 0; i < count; ++i) {
    scratch.before[i] = LoadBytes(codes.data() + (scratch.candidates[i] >> packed) * bytes, bytes);
  }
  FindMatrixAmax(output, scratch);
  quantise::QuantiseElements(ActiveInstructionSet(), grid.recipe(),
                             std::as_bytes(std::span(scratch.elements)),
                             changed.amax.empty() ? scratch.matrix_amax : scratch.amax,
                             scratch.matrix_amax, scratch.codes);
  const uint32_t in_word = (1U << packed) - 1;
  const uint32_t bits = packed == 0 ? 8 : 4;  // of a code
  for (size_t i = 0; i < count;) {
    const uint32_t position = scratch.candidates[i] >> packed;
    const uint32_t before = scratch.before[i];
    uint32_t after = before;
    for (; i < count && scratch.candidates[i] >> packed == position; ++i) {
      const uint32_t shift = (scratch.candidates[i] & in_word) * bits;
      after &= ~(((1U << bits) - 1) << shift);
      after |= static_cast<uint32_t>(scratch.codes[i]) << shift;
    }
    if (after == before) continue;
    output.positions.push_back(static_cast<uint16_t>(position));
    Append(before, bytes, output.before);
    Append(after, bytes, output.after);
  }
}

ListedChanges ViewChanges::ChangesOf(const Output& output) {
  return {.count = static_cast<uint32_t>(output.positions.size()),
          .positions = std::as_bytes(std::span(output.positions)),
          .before = output.before,
          .after = output.after};
}

std::optional<DiffedBlock> ViewChanges::Diffed(BlockRef ref) const {
  const uint32_t number = numbers_[view_.layout().slice(ref.slice).first_block + ref.block];
  DWS_CHECK(number > 0);
  const Output& output = outputs_[number - 1];
  return DiffedBlock{.difference = output.difference, .changes = ChangesOf(output)};
}

void ViewChanges::Read(BlockRef, MutableByteSpan) const { DWS_CHECK(false); }

ByteSpan ViewChanges::View(BlockRef, size_t) const {
  DWS_CHECK(false);
  return {};
}

}  // namespace dws
