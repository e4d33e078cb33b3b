// If tiles are parts of rows, a changed run of elements touches a run of tiles. Squares are found
// row by row with a set of bits: one bit for 4096 or more elements.
#include "common/quantise/tile_grid.h"

#include <algorithm>
#include <bit>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws::quantise {
namespace {

// Appends a run, which begins at or after the last one's begin.
void Append(uint64_t first, uint64_t end, std::vector<TileRun>& runs) {
  if (!runs.empty() && first <= runs.back().first + runs.back().count) {
    runs.back().count = std::max(runs.back().count, end - runs.back().first);
    return;
  }
  runs.push_back({.first = first, .count = end - first});
}

// Appends the delta blocks of the elements begin to end - 1, which begin at or after all before.
void AppendBlocks(uint64_t begin, uint64_t end, std::vector<uint32_t>& blocks) {
  if (begin == end) return;
  auto block = static_cast<uint32_t>(begin / limits::kBlockElements);
  const auto last = static_cast<uint32_t>((end - 1) / limits::kBlockElements);
  if (!blocks.empty()) block = std::max(block, blocks.back() + 1);
  for (; block <= last; ++block) blocks.push_back(block);
}

}  // namespace

Result<TileGrid> TileGrid::Create(const Recipe& recipe, const std::vector<uint64_t>& shape) {
  TileGrid grid;
  DWS_ASSIGN_OR_RETURN(grid.shape_, MatrixShapeOf(recipe, shape));
  grid.recipe_ = recipe;
  const auto resolve = [](uint32_t tile, uint64_t whole) {
    return std::max<uint64_t>(1, tile == Recipe::kWhole ? whole : tile);
  };
  grid.tile_rows_ = resolve(recipe.tile_rows, grid.shape_.rows);
  grid.tile_columns_ = resolve(recipe.tile_columns, grid.shape_.columns);
  grid.across_ = CeilDiv(grid.shape_.columns, grid.tile_columns_);
  grid.down_ = CeilDiv(grid.shape_.rows, grid.tile_rows_);
  return grid;
}

TileArea TileGrid::AreaOf(uint64_t tile) const {
  DWS_CHECK(tile < tile_count());
  if (recipe_.is_transposed()) {
    const uint64_t row = tile / down_ / across_ * shape_.rows + tile % down_ * tile_rows_;
    return {.begin = row * shape_.columns + tile / down_ % across_,
            .rows = tile_rows_,
            .columns = 1,
            .stride = shape_.columns};
  }
  const uint64_t tile_row = tile / across_;  // of all matrices
  const uint64_t row = tile_row % down_ * tile_rows_;
  const uint64_t column = tile % across_ * tile_columns_;
  return {.begin = (tile_row / down_ * shape_.rows + row) * shape_.columns + column,
          .rows = std::min(tile_rows_, shape_.rows - row),
          .columns = std::min(tile_columns_, shape_.columns - column),
          .stride = shape_.columns};
}

uint64_t TileGrid::NumberOf(uint64_t tile_row, uint64_t tile_column) const {
  if (!recipe_.is_transposed()) return tile_row * across_ + tile_column;
  return (tile_row / down_ * across_ + tile_column) * down_ + tile_row % down_;
}

std::vector<TileRun> TileGrid::Touched(std::span<const uint32_t> blocks) const {
  if (!IsLinear()) return TouchedSquares(blocks);
  std::vector<TileRun> runs;
  for (const uint32_t block : blocks) {
    const uint64_t begin = uint64_t{block} * limits::kBlockElements;
    DWS_CHECK(begin < shape_.elements());
    const uint64_t end = std::min(begin + limits::kBlockElements, shape_.elements());
    Append(begin / tile_columns_, CeilDiv(end, tile_columns_), runs);
  }
  return runs;
}

std::vector<TileRun> TileGrid::TouchedSquares(std::span<const uint32_t> blocks) const {
  std::vector<bool> touched(tile_count());
  for (const uint32_t block : blocks) {
    uint64_t at = uint64_t{block} * limits::kBlockElements;
    DWS_CHECK(at < shape_.elements());
    const uint64_t end = std::min(at + limits::kBlockElements, shape_.elements());
    while (at < end) {
      const uint64_t row = at / shape_.columns;  // of all matrices
      const uint64_t row_begin = row * shape_.columns;
      const uint64_t stop = std::min(end, row_begin + shape_.columns);
      const uint64_t tile_row = row / shape_.rows * down_ + row % shape_.rows / tile_rows_;
      const uint64_t last = (stop - 1 - row_begin) / tile_columns_;
      for (uint64_t c = (at - row_begin) / tile_columns_; c <= last; ++c) {
        touched[NumberOf(tile_row, c)] = true;
      }
      at = stop;
    }
  }
  std::vector<TileRun> runs;
  for (uint64_t tile = 0; tile < touched.size(); ++tile) {
    if (touched[tile]) Append(tile, tile + 1, runs);
  }
  return runs;
}

std::vector<uint32_t> TileGrid::OutputBlocks(Role role, std::span<const TileRun> tiles) const {
  const OutputKind* const output = recipe_.Find(role);
  DWS_CHECK(output != nullptr && (role == Role::kCodes || role == Role::kScales));
  std::vector<uint32_t> blocks;
  if (role == Role::kScales) {
    for (const TileRun& run : tiles) AppendBlocks(run.first, run.first + run.count, blocks);
    return blocks;
  }
  if (IsLinear() || recipe_.is_transposed()) {
    const uint64_t elements = tile_rows_ * tile_columns_;
    for (const TileRun& run : tiles) {
      AppendBlocks(run.first * elements / packed(),
                   CeilDiv((run.first + run.count) * elements, packed()), blocks);
    }
    return blocks;
  }
  std::vector<bool> found(CeilDiv(shape_.elements(), limits::kBlockElements));
  for (const TileRun& run : tiles) {
    for (uint64_t tile = run.first; tile < run.first + run.count;) {
      // The tiles of this run in one row of tiles.
      const uint64_t column = tile % across_;
      const uint64_t count = std::min(across_ - column, run.first + run.count - tile);
      const uint64_t matrix = tile / across_ / down_;
      const uint64_t first_row = tile / across_ % down_ * tile_rows_;
      const uint64_t end_row = std::min(first_row + tile_rows_, shape_.rows);
      const uint64_t end_column = std::min((column + count) * tile_columns_, shape_.columns);
      for (uint64_t row = first_row; row < end_row; ++row) {
        const uint64_t begin = (matrix * shape_.rows + row) * shape_.columns;
        const uint64_t last = (begin + end_column - 1) / limits::kBlockElements;
        for (uint64_t b = (begin + column * tile_columns_) / limits::kBlockElements; b <= last;
             ++b) {
          found[b] = true;
        }
      }
      tile += count;
    }
  }
  for (uint32_t block = 0; block < found.size(); ++block) {
    if (found[block]) blocks.push_back(block);
  }
  return blocks;
}

uint32_t TileGrid::packed() const {
  const OutputKind* const codes = recipe_.Find(Role::kCodes);
  return recipe_.codes() == Codes::kE4m3 ? 1 : ElementBytes(codes->dtype) * 2;
}

uint64_t TileGrid::codes_bytes() const {
  return recipe_.codes() == Codes::kE4m3 ? shape_.elements() : shape_.elements() / 2;
}

uint64_t TileGrid::scales_bytes() const {
  const OutputKind* const scales = recipe_.Find(Role::kScales);
  return scales == nullptr ? 0 : tile_count() * ElementBytes(scales->dtype);
}

TileCursor::TileCursor(const TileGrid& grid) : grid_(grid) {
  const uint64_t columns = grid.tile_columns();
  DWS_CHECK(!grid.recipe().is_transposed());
  DWS_CHECK(std::has_single_bit(columns) || grid.across_ == 1);
  shift_ = grid.across_ == 1 ? 63 : static_cast<uint32_t>(std::countr_zero(columns));
  if (grid.IsLinear() && grid.across_ > 1) row_end_ = grid.shape().elements();  // as one row
}

void TileCursor::MoveToRow(uint64_t element) {
  const MatrixShape& shape = grid_.shape();
  DWS_CHECK(element < shape.elements());
  const uint64_t row = element / shape.columns;  // of all matrices
  row_begin_ = row * shape.columns;
  row_end_ = row_begin_ + shape.columns;
  row_tile_ =
      (row / shape.rows * grid_.down_ + row % shape.rows / grid_.tile_rows_) * grid_.across_;
}

}  // namespace dws::quantise
