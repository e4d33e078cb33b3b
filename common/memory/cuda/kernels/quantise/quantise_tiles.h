// dws_quantise: tiles of BF16 elements become codes and scales (quantise_args.h).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/quantise/quantise_area.h"
#include "common/memory/cuda/kernels/quantise/quantise_groups.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

template <Rule kRule>
DWS_KERNEL void QuantiseItem(const Warp& warp, const QuantiseArgs& args, uint64_t item) {
  if constexpr (quantise::TilesOf(kRule) == Tiles::kColumns) {
    const uint64_t down = args.rows / kColumnTileRows;
    const uint64_t group = item / down;
    QuantiseColumns<kRule>(warp, args, args.first / down + group * Warp::kLanes,
                           (args.first + args.count) / down, item - group * down);
  } else {
    const uint64_t tiles = QuantiseItemTiles(args);
    const uint64_t first = args.first + item * tiles;
    const uint64_t left = args.first + args.count - first;
    const uint64_t end = first + (left < tiles ? left : tiles);
    if constexpr (quantise::TilesOf(kRule) == Tiles::kSquares) {
      QuantiseArea<kRule>(warp, args, first, SquareOf(args, first));
    } else if constexpr (quantise::TilesOf(kRule) == Tiles::kElements) {
      QuantiseElements<kRule>(warp, args, first, end);
    } else if constexpr (HasRowTiles(kRule)) {
      QuantiseArea<kRule>(warp, args, first,
                          {.begin = first * args.columns,
                           .rows = 1,
                           .columns = static_cast<uint32_t>(args.columns)});
    } else {
      QuantiseGroups<kRule>(warp, args, first, end);
    }
  }
}

// Every rule has loops of its own.
template <uint8_t kNumber = 0>
DWS_KERNEL void QuantiseTiles(const Warp& warp, const QuantiseArgs& args, const WarpShare& share) {
  if (static_cast<uint8_t>(args.rule) == kNumber) {
    const uint64_t items = QuantiseItems(args);
    for (uint64_t item = share.first; item < items; item += share.step) {
      QuantiseItem<static_cast<Rule>(kNumber)>(warp, args, item);
    }
  } else if constexpr (kNumber + 1 < quantise::kRuleCount) {
    QuantiseTiles<kNumber + 1>(warp, args, share);
  }
}

}  // namespace dws::cuda::kernels
