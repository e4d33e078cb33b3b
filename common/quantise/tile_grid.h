// The tiles of one tensor, or of one slice of it: their number, the tiles that changed blocks
// touch, and the blocks of the outputs that the tiles write. Pure; a tile's number is the number of
// its scale.
#pragma once

#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/quantise/derived_tensors.h"
#include "common/quantise/recipe.h"

namespace dws::quantise {

// Tiles with consecutive numbers: row-major in a matrix, matrix after matrix; if the recipe
// transposes, in the transposed one.
struct TileRun {
  uint64_t first = 0;
  uint64_t count = 0;

  friend bool operator==(const TileRun&, const TileRun&) = default;
};

// The elements of one tile: runs of `columns` elements that begin `stride` apart.
struct TileArea {
  uint64_t begin = 0;
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t stride = 0;
};

// Immutable once made. Threads: safe to read from any.
class TileGrid {
 public:
  // Makes the grid of a contiguous BF16 array of this shape. INVALID_ARGUMENT: as MatrixShapeOf.
  static Result<TileGrid> Create(const Recipe& recipe, const std::vector<uint64_t>& shape);

  const Recipe& recipe() const { return recipe_; }
  const MatrixShape& shape() const { return shape_; }
  uint64_t tile_rows() const { return tile_rows_; }        // at most; Recipe::kWhole is resolved
  uint64_t tile_columns() const { return tile_columns_; }  // at most
  uint64_t tile_count() const { return shape_.matrices * across_ * down_; }
  TileRun All() const { return {.first = 0, .count = tile_count()}; }

  // CHECK: in range.
  TileArea AreaOf(uint64_t tile) const;

  // Returns the tiles with an element in any of these delta blocks (runs of limits::kBlockElements
  // elements; ascending, in range: CHECK), as ascending runs that do not meet.
  std::vector<TileRun> Touched(std::span<const uint32_t> blocks) const;

  // Returns the delta blocks of the codes or of the scales that these tiles (ascending) lie in,
  // ascending. CHECK: the recipe has such an output, and the role is kCodes or kScales.
  std::vector<uint32_t> OutputBlocks(Role role, std::span<const TileRun> tiles) const;

  // Codes in an element of the output kCodes.
  uint32_t packed() const;
  uint64_t codes_bytes() const;
  uint64_t scales_bytes() const;  // 0: the recipe has none

 private:
  TileGrid() = default;

  friend class TileCursor;
  bool IsLinear() const { return tile_rows_ == 1; }                  // tiles are runs of elements
  uint64_t NumberOf(uint64_t tile_row, uint64_t tile_column) const;  // the row: of all matrices
  std::vector<TileRun> TouchedSquares(std::span<const uint32_t> blocks) const;

  Recipe recipe_;
  MatrixShape shape_;
  uint64_t tile_rows_ = 1;
  uint64_t tile_columns_ = 1;
  uint64_t across_ = 0;  // tiles of a row of tiles
  uint64_t down_ = 0;    // rows of tiles of one matrix
};

// Finds the tiles of elements that ascend. The grid must outlive it, and its recipe must not
// transpose (CHECK).
class TileCursor {
 public:
  explicit TileCursor(const TileGrid& grid);

  // Returns the tile of an element, which must be in range and not before the element of the last
  // call.
  uint64_t TileOf(uint64_t element) {
    if (element >= row_end_) MoveToRow(element);
    return row_tile_ + ((element - row_begin_) >> shift_);
  }

 private:
  void MoveToRow(uint64_t element);

  const TileGrid& grid_;
  uint32_t shift_ = 0;  // a tile's columns as a power of two
  uint64_t row_begin_ = 0;
  uint64_t row_end_ = 0;
  uint64_t row_tile_ = 0;  // the first tile of the row
};

}  // namespace dws::quantise
