// Tiles that a warp takes one by one, and elements of matrices with one scale.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/quantise/quads.h"

namespace dws::cuda::kernels {

// `rows` runs of `columns` elements, `stride` apart; `begin` is the number of the first one.
struct Area {
  uint64_t begin = 0;
  uint32_t rows = 0;
  uint32_t columns = 0;
  uint64_t stride = 0;
};

// Calls f(lane, number of the first element, count) for each four elements of a row, or fewer at
// its end.
template <typename F>
DWS_KERNEL void ForQuads(const Warp& warp, const Area& area, F f) {
  const uint32_t across = area.columns / kQuad + (area.columns % kQuad != 0 ? 1 : 0);
  const uint32_t quads = across * area.rows;
  for (uint32_t step = 0; step < quads; step += Warp::kLanes) {
    warp.lanes([&](uint32_t lane) {
      const uint32_t quad = step + lane;
      if (quad >= quads) return;
      const uint32_t row = area.rows == 1 ? 0 : quad / across;
      const uint32_t column = (quad - row * across) * kQuad;
      const uint32_t left = area.columns - column;
      f(lane, area.begin + row * area.stride + column, left < kQuad ? left : kQuad);
    });
  }
}

template <Rule kRule>
DWS_KERNEL void EncodeArea(const Warp& warp, const QuantiseArgs& args, const Area& area,
                           float operand) {
  ForQuads(warp, area, [&](uint32_t /*lane*/, uint64_t number, uint32_t count) {
    const uint64_t quad = LoadQuad(args.source + number * 2, count);
    StoreQuad<kRule>(args, number, EncodeQuad<kRule>(quad, operand), count);
  });
}

// A tile that a warp takes alone. It is read twice, the second time from a cache.
template <Rule kRule>
DWS_KERNEL void QuantiseArea(const Warp& warp, const QuantiseArgs& args, uint64_t tile,
                             const Area& area) {
  Vec<uint32_t> most;
  ForQuads(warp, area, [&](uint32_t lane, uint64_t number, uint32_t count) {
    most[lane] = Larger(most[lane], AmaxOf(LoadQuad(args.source + number * 2, count)));
  });
  const uint32_t amax = warp.Largest(most);
  const quantise::Scale scale = quantise::MakeScale<kRule>(amax, {});
  warp.lanes([&](uint32_t lane) {
    if (lane == 0) StoreTile<kRule>(args, tile, amax, scale.stored);
  });
  EncodeArea<kRule>(warp, args, area, scale.operand);
}

DWS_KERNEL Area SquareOf(const QuantiseArgs& args, uint64_t tile) {
  const uint64_t across = (args.columns + args.tile_columns - 1) / args.tile_columns;
  const uint64_t down = (args.rows + args.tile_rows - 1) / args.tile_rows;
  const uint64_t tile_row = tile / across;  // of all matrices
  const uint64_t matrix = tile_row / down;
  const uint64_t row = (tile_row - matrix * down) * args.tile_rows;
  const uint64_t column = (tile - tile_row * across) * args.tile_columns;
  const uint64_t rows = args.rows - row;
  const uint64_t columns = args.columns - column;
  return {
      .begin = (matrix * args.rows + row) * args.columns + column,
      .rows = rows < args.tile_rows ? static_cast<uint32_t>(rows) : args.tile_rows,
      .columns = columns < args.tile_columns ? static_cast<uint32_t>(columns) : args.tile_columns,
      .stride = args.columns};
}

// Elements of matrices with one scale each: `first` to `end` - 1 of the slice.
template <Rule kRule>
DWS_KERNEL void QuantiseElements(const Warp& warp, const QuantiseArgs& args, uint64_t first,
                                 uint64_t end) {
  const uint64_t elements = args.rows * args.columns;  // of a matrix
  for (uint64_t at = first; at < end;) {
    const uint64_t matrix = at / elements;
    const uint64_t matrix_end = (matrix + 1) * elements;
    const uint64_t stop = matrix_end < end ? matrix_end : end;
    const uint32_t amax = TensorAmax(args, matrix);
    const quantise::Scale scale =
        quantise::MakeScale<kRule>(amax, quantise::MakeTensorScale<kRule>(amax));
    EncodeArea<kRule>(warp, args,
                      {.begin = at, .rows = 1, .columns = static_cast<uint32_t>(stop - at)},
                      scale.operand);
    at = stop;
  }
}

}  // namespace dws::cuda::kernels
