// The kernels treat rows of tiles as separate matrices, so a run of a slice's codes and scales can
// be made without the rest of the slice. In a layout, scales come behind their codes, so they exist
// when the walk arrives at them.
#include "tools/checkpoint/parts/view_source.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/quantise/quantise.h"

namespace dws::checkpoint {
namespace {

using quantise::TileGrid;

// What a worker quantises at once, unless a row of tiles has more.
constexpr uint64_t kElementsAtOnce = uint64_t{1} << 18;
constexpr uint64_t kElementBytes = 2;  // of BF16

uint64_t CodesBytes(const TileGrid& grid, uint64_t elements) {
  return elements / (grid.shape().elements() / grid.codes_bytes());
}

// Codes of 4 bits that differ.
uint32_t DifferingNibbles(ByteSpan a, ByteSpan b) {
  uint32_t count = 0;
  for (size_t at = 0; at < a.size(); ++at) {
    const auto bits = std::to_integer<uint32_t>(a[at] ^ b[at]);
    count += ((bits & 0x0F) != 0 ? 1 : 0) + ((bits & 0xF0) != 0 ? 1 : 0);
  }
  return count;
}

uint32_t DifferingBytes(ByteSpan a, ByteSpan b) {
  return static_cast<uint32_t>(
      std::inner_product(a.begin(), a.end(), b.begin(), size_t{0}, std::plus<>(),
                         [](std::byte x, std::byte y) { return x != y ? size_t{1} : size_t{0}; }));
}

}  // namespace

ViewSource::ViewSource(const quantise::ViewLayout& view,
                       std::vector<const CheckpointTensor*> before,
                       std::vector<const CheckpointTensor*> after, ThreadPool& pool)
    : view_(view),
      before_(std::move(before)),
      after_(std::move(after)),
      pool_(pool),
      origins_(view.layout().slice_count()),
      changed_codes_(view.layout().block_count()) {
  for (const quantise::ViewLayout::Slice& slice : view.slices()) {
    origins_[slice.codes.value()].from = &slice;
    if (!slice.scales.has_value()) continue;
    DWS_CHECK(slice.codes < *slice.scales);
    origins_[slice.scales->value()] = {.from = &slice, .is_scales = true};
  }
  for (const quantise::ViewLayout::Constant& constant : view.constants()) {
    std::vector<std::byte> bytes(view.layout().slice(constant.slice).size_bytes());
    if (!bytes.empty()) quantise::WriteShapes(constant.shape, bytes);
    origins_[constant.slice.value()].made = {.before = bytes, .after = bytes};
  }
  FindAmax();
}

// The matrices that share a scale have the largest amax of all of them.
void ViewSource::FindAmax() {
  const auto& shared = view_.matrices();
  std::vector<const quantise::ViewLayout::Slice*> slices;
  for (const quantise::ViewLayout::Slice& slice : view_.slices()) {
    if (slice.matrices.has_value()) slices.push_back(&slice);
  }
  std::vector<Amax> of(slices.size());
  pool_.ParallelFor(slices.size() * 2, [&](size_t index, size_t /*worker*/) {
    const quantise::ViewLayout::Slice& slice = *slices[index / 2];
    const bool after = index % 2 == 1;
    (after ? of[index / 2].after : of[index / 2].before) = quantise::MatrixAmax(
        ActiveInstructionSet(), *slice.grid, (after ? after_ : before_)[slice.from.value()]->bytes);
  });
  for (const quantise::ViewLayout::Matrices& matrices : shared) {
    amax_.push_back({.before = std::vector<uint16_t>(matrices.count),
                     .after = std::vector<uint16_t>(matrices.count)});
  }
  const auto raise = [](std::vector<uint16_t>& to, const std::vector<uint16_t>& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
  };
  for (size_t i = 0; i < slices.size(); ++i) {
    raise(amax_[*slices[i]->matrices].before, of[i].before);
    raise(amax_[*slices[i]->matrices].after, of[i].after);
  }
  for (size_t m = 0; m < shared.size(); ++m) {
    for (const RankSlice scales : shared[m].scales) {
      Bytes& made = origins_[scales.value()].made;
      made.before.resize(view_.layout().slice(scales).size_bytes());
      made.after.resize(made.before.size());
      quantise::WriteTensorScales(view_.recipe(), amax_[m].before, made.before);
      quantise::WriteTensorScales(view_.recipe(), amax_[m].after, made.after);
    }
  }
}

bool ViewSource::IsReady(RankSlice slice) const {
  const Origin& origin = origins_[slice.value()];
  return origin.from == nullptr || !origin.from->grid.has_value();
}

void ViewSource::AddBand(RankSlice slice, uint32_t first_block, uint32_t last_block,
                         std::vector<Piece>& pieces) {
  const quantise::ViewLayout::Slice& from = *origins_[slice.value()].from;
  const TileGrid& grid = *from.grid;
  const uint64_t columns = grid.shape().columns;
  const uint64_t rows = grid.shape().rows;  // of one matrix
  // The codes of a row of tiles of a transposed matrix are all over it.
  const uint64_t tile_rows = grid.recipe().is_transposed() ? rows : grid.tile_rows();
  const RankLayout::SliceEntry& entry = view_.layout().slice(slice);
  const uint64_t elements_each = grid.shape().elements() / entry.elements;
  // The first row of the tiles that an element of the slice of codes is in, and the row behind
  // them.
  const auto first_row = [&](uint64_t element) {
    const uint64_t row = element * elements_each / columns;
    return row - row % rows % tile_rows;
  };
  const auto end_row = [&](uint64_t first) {
    return std::min(first + tile_rows, (first / rows + 1) * rows);
  };
  const uint64_t begin = first_row(uint64_t{first_block} * limits::kBlockElements);
  const uint64_t end = end_row(first_row(uint64_t{last_block} * limits::kBlockElements +
                                         BlockElements(entry.elements, last_block) - 1));
  Band& band = bands_[slice];
  band.first_byte = CodesBytes(grid, begin * columns);
  for (std::vector<std::byte>* codes : {&band.codes.before, &band.codes.after}) {
    codes->resize(CodesBytes(grid, (end - begin) * columns));
  }
  Bytes* scales = nullptr;
  if (from.scales.has_value()) {
    scales = &scales_[*from.scales];
    scales->before.resize(grid.scales_bytes());
    scales->after.resize(grid.scales_bytes());
  }
  const uint64_t rows_at_once =
      std::max<uint64_t>(1, kElementsAtOnce / (tile_rows * columns)) * tile_rows;
  for (uint64_t row = begin; row < end;) {
    const uint64_t stop = std::min({row + rows_at_once, (row / rows + 1) * rows, end});
    pieces.push_back(
        {.slice = &from, .first_row = row, .rows = stop - row, .band = &band, .scales = scales});
    row = stop;
  }
}

void ViewSource::Prepare(std::span<const WalkedBlock> window) {
  bands_.clear();
  std::erase_if(scales_,
                [&window](const auto& entry) { return entry.first < window.front().slice; });
  std::vector<Piece> pieces;
  for (size_t i = 0; i < window.size();) {
    const RankSlice slice = window[i].slice;
    const size_t begin = i;
    while (i < window.size() && window[i].slice == slice) ++i;
    if (IsReady(slice) || origins_[slice.value()].is_scales) continue;
    AddBand(slice, window[begin].block, window[i - 1].block, pieces);
  }
  pool_.ParallelFor(pieces.size() * 2, [&](size_t index, size_t /*worker*/) {
    QuantisePiece(pieces[index / 2], index % 2 == 1);
  });
}

void ViewSource::QuantisePiece(const Piece& piece, bool after) {
  const TileGrid& whole = *piece.slice->grid;
  const uint64_t columns = whole.shape().columns;
  const uint64_t rows = whole.shape().rows;
  const uint64_t across = CeilDiv(columns, whole.tile_columns());
  const uint64_t down = CeilDiv(rows, whole.tile_rows());
  const auto grid = TileGrid::Create(whole.recipe(), {piece.rows, columns});
  DWS_CHECK(grid.ok());  // the whole tensor's columns fit
  const ByteSpan elements = (after ? after_ : before_)[piece.slice->from.value()]->bytes;
  Bytes& codes = piece.band->codes;
  const uint64_t tile_row =
      piece.first_row / rows * down + piece.first_row % rows / whole.tile_rows();
  MutableByteSpan scales;
  if (piece.scales != nullptr) {
    const uint64_t scale_bytes = whole.scales_bytes() / whole.tile_count();
    scales = MutableByteSpan(after ? piece.scales->after : piece.scales->before)
                 .subspan(tile_row * across * scale_bytes, grid->scales_bytes());
  }
  std::span<const uint16_t> amax;  // of this matrix
  if (piece.slice->matrices.has_value()) {
    const Amax& of = amax_[*piece.slice->matrices];
    amax = std::span(after ? of.after : of.before).subspan(piece.first_row / rows, 1);
  }
  const std::vector<quantise::TileRun> all = {grid->All()};
  quantise::Quantise(
      ActiveInstructionSet(), *grid,
      elements.subspan(piece.first_row * columns * kElementBytes,
                       piece.rows * columns * kElementBytes),
      amax, all,
      {.codes = MutableByteSpan(after ? codes.after : codes.before)
                    .subspan(CodesBytes(whole, piece.first_row * columns) - piece.band->first_byte,
                             grid->codes_bytes()),
       .scales = scales});
}

Result<BlockStates> ViewSource::Read(RankSlice slice, uint32_t block, size_t /*worker*/) {
  const RankLayout::SliceEntry& entry = view_.layout().slice(slice);
  const Origin& origin = origins_[slice.value()];
  const auto of = [&](ByteSpan before, ByteSpan after) {
    return BlockStates{.before = BlockOf(entry, block, before),
                       .after = BlockOf(entry, block, after)};
  };
  if (origin.from == nullptr) return of(origin.made.before, origin.made.after);
  if (!origin.from->grid.has_value()) {
    const size_t from = origin.from->from.value();
    return of(before_[from]->bytes, after_[from]->bytes);
  }
  if (origin.is_scales) {
    const Bytes& scales = scales_.at(slice);
    return of(scales.before, scales.after);
  }
  const Band& band = bands_.at(slice);
  const uint64_t begin =
      uint64_t{block} * limits::kBlockElements * ElementBytes(entry.dtype) - band.first_byte;
  const uint64_t size = uint64_t{BlockElements(entry.elements, block)} * ElementBytes(entry.dtype);
  const BlockStates states{.before = ByteSpan(band.codes.before).subspan(begin, size),
                           .after = ByteSpan(band.codes.after).subspan(begin, size)};
  const bool packed = origin.from->grid->recipe().codes() != quantise::Codes::kE4m3;
  changed_codes_[entry.first_block + block] = packed ? DifferingNibbles(states.before, states.after)
                                                     : DifferingBytes(states.before, states.after);
  return states;
}

uint64_t ViewSource::changed_codes() const {
  return std::accumulate(changed_codes_.begin(), changed_codes_.end(), uint64_t{0});
}

}  // namespace dws::checkpoint
