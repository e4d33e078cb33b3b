// Tiles of a few elements: a warp takes many at a time.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/quantise/quads.h"

namespace dws::cuda::kernels {

// The largest of `most` over each `lanes` neighbouring lanes (a power of two), in all of them.
DWS_KERNEL void SpreadLargest(const Warp& warp, uint32_t lanes, Vec<uint32_t>& most) {
  for (uint32_t by = 1; by < lanes; by *= 2) {
    Vec<uint32_t> from;
    warp.lanes([&](uint32_t lane) { from[lane] = lane ^ by; });
    const Vec<uint32_t> other = warp.Shuffle(most, from);
    warp.lanes([&](uint32_t lane) { most[lane] = Larger(most[lane], other[lane]); });
  }
}

// Groups of a row, several at a time: each four elements of a group have a lane.
template <Rule kRule>
DWS_KERNEL void QuantiseGroups(const Warp& warp, const QuantiseArgs& args, uint64_t first,
                               uint64_t end) {
  const uint32_t size = args.tile_columns;
  const uint32_t lanes = size / kQuad;
  const uint32_t shift = LowestOne(lanes);
  const uint64_t matrix_tiles = args.rows * (args.columns / size);
  // Most items lie in one matrix.
  uint64_t matrix = 0;
  quantise::TensorScale tensor;
  if constexpr (quantise::HasTensorScale(kRule)) {
    matrix = first / matrix_tiles;
    tensor = quantise::MakeTensorScale<kRule>(TensorAmax(args, matrix));
  }
  for (uint64_t step = first; step < end; step += Warp::kLanes >> shift) {
    Vec<uint64_t> quads;
    Vec<uint32_t> most;
    warp.lanes([&](uint32_t lane) {
      const uint64_t tile = step + (lane >> shift);
      if (tile >= end) return;
      const uint32_t inside = (lane & (lanes - 1)) * kQuad;
      quads[lane] = Load<uint64_t>(args.source + (tile * size + inside) * 2);
      most[lane] = AmaxOf(quads[lane]);
    });
    SpreadLargest(warp, lanes, most);
    warp.lanes([&](uint32_t lane) {
      const uint64_t tile = step + (lane >> shift);
      if (tile >= end) return;
      quantise::TensorScale mine = tensor;
      if constexpr (quantise::HasTensorScale(kRule)) {
        if (tile >= (matrix + 1) * matrix_tiles) {
          mine = quantise::MakeTensorScale<kRule>(TensorAmax(args, tile / matrix_tiles));
        }
      }
      const quantise::Scale scale = quantise::MakeScale<kRule>(most[lane], mine);
      const uint32_t inside = (lane & (lanes - 1)) * kQuad;
      if (inside == 0) StoreTile<kRule>(args, tile, most[lane], scale.stored);
      StoreQuad<kRule>(args, tile * size + inside, EncodeQuad<kRule>(quads[lane], scale.operand),
                       kQuad);
    });
  }
}

// One tile of each of 32 columns, which may lie in two matrices: a lane has a tile, and its codes
// are contiguous. `column` is counted over all matrices; `end` is the end of the columns.
template <Rule kRule>
DWS_KERNEL void QuantiseColumns(const Warp& warp, const QuantiseArgs& args, uint64_t column,
                                uint64_t end, uint64_t tile_row) {
  constexpr uint32_t kQuads = kColumnTileRows / kQuad;
  warp.lanes([&](uint32_t lane) {
    const uint64_t mine = column + lane;
    if (mine >= end) return;
    const uint64_t matrix = mine / args.columns;
    const uint64_t row = matrix * args.rows + tile_row * kColumnTileRows;
    const uint64_t from = args.source + (row * args.columns + (mine - matrix * args.columns)) * 2;
    uint64_t quads[kQuads] = {};
    DWS_UNROLL
    for (uint32_t r = 0; r < kColumnTileRows; ++r) {
      quads[r / kQuad] |= uint64_t{Load<uint16_t>(from + r * args.columns * 2)} << (r % kQuad * 16);
    }
    uint32_t amax = 0;
    DWS_UNROLL
    for (const uint64_t quad : quads) amax = Larger(amax, AmaxOf(quad));
    const quantise::Scale scale = quantise::MakeScale<kRule>(amax, {});
    const uint64_t tile = mine * (args.rows / kColumnTileRows) + tile_row;
    StoreTile<kRule>(args, tile, amax, scale.stored);
    DWS_UNROLL
    for (uint32_t q = 0; q < kQuads; q += kQuad) {
      uint64_t codes = 0;
      DWS_UNROLL
      for (uint32_t i = 0; i < kQuad; ++i) {
        codes |= uint64_t{EncodeQuad<kRule>(quads[q + i], scale.operand)} << (i * 16);
      }
      Store<uint64_t>(args.codes + tile * (kColumnTileRows / 2) + q * 2, codes);
    }
  });
}

}  // namespace dws::cuda::kernels
