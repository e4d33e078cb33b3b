// The arguments of dws_quantise, as kernel_args.h describes those of the others.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/quantise/kernels/rule.h"

namespace dws::cuda {

// dws_quantise: codes and scales of consecutive tiles of one BF16 slice, and the amax of the tiles:
// the bytes that RECIPES.md defines (common/quantise). One warp for each item of tiles.
//
// `codes`, `scales` and `amax` are where those of the whole slice would begin, each at a multiple
// of its items (of 8, if a byte has two codes). Only those of the tiles are written, so only these
// need memory: an address may lie before any memory, or wrap.
struct QuantiseArgs {
  uint64_t source = 0;       // the elements of the whole slice, row-major; a multiple of 8
  uint64_t tensor_amax = 0;  // uint16_t of each matrix; unused if the rule has no tensor scale
  uint64_t codes = 0;
  uint64_t scales = 0;     // unused if the rule has no scales of tiles
  uint64_t amax = 0;       // uint16_t of each tile; 0: not wanted
  uint64_t rows = 0;       // of one matrix
  uint64_t columns = 0;    // below 2^32
  uint64_t first = 0;      // tile; if tiles are columns: the first of its column
  uint64_t count = 0;      // if tiles are columns: of whole columns
  uint32_t tile_rows = 0;  // at most; squares have at most 2^16 elements
  uint32_t tile_columns = 0;
  quantise::Rule rule = quantise::Rule::kDeepseek;
};

// The rows of a tile that is a part of a column.
inline constexpr uint32_t kColumnTileRows = 32;
// What a warp quantises at once, but for tiles that are larger.
inline constexpr uint32_t kItemElements = 2048;

// Returns whether tiles are rows of any length, which a warp takes one by one. Other runs are
// groups of 16, 32, 64 or 128 elements, and the columns a multiple of that.
constexpr bool HasRowTiles(quantise::Rule rule) {
  return rule == quantise::Rule::kVllmChannel || rule == quantise::Rule::kCompressedRow;
}

// The tiles of an item.
constexpr uint64_t QuantiseItemTiles(const QuantiseArgs& args) {
  switch (quantise::TilesOf(args.rule)) {
    case quantise::Tiles::kSquares:
      return 1;
    case quantise::Tiles::kElements:
      return kItemElements;
    case quantise::Tiles::kRuns:
      return HasRowTiles(args.rule) ? 1 : kItemElements / args.tile_columns;
    case quantise::Tiles::kColumns:
      return kWarpLanes;  // one of each of so many columns
  }
  return 1;
}

// How many items the launch has.
constexpr uint64_t QuantiseItems(const QuantiseArgs& args) {
  const uint64_t tiles = QuantiseItemTiles(args);
  if (quantise::TilesOf(args.rule) != quantise::Tiles::kColumns) {
    return (args.count + tiles - 1) / tiles;
  }
  const uint64_t down = args.rows / kColumnTileRows;
  return down == 0 ? 0 : (args.count / down + tiles - 1) / tiles * down;
}

}  // namespace dws::cuda
