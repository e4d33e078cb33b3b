// The loops over tiles, rows and elements, for any number of lanes. Included by one file for each
// instruction set, after it has defined DWS_QUANTISE_CODE (arithmetic.h says why).
#pragma once

#include <algorithm>
#include <cstring>

#include "common/base/bytes.h"
#include "common/quantise/kernels/arithmetic.h"
#include "common/quantise/kernels/scales.h"
#include "common/quantise/kernels/tile_kernels.h"

namespace dws::quantise::kernels {

template <typename Lanes, Step kStep>
DWS_QUANTISE_CODE typename Lanes::Floats Quotient(typename Lanes::Floats value,
                                                  typename Lanes::Floats operand) {
  if constexpr (kStep == Step::kMultiply) {
    return Lanes::Multiply(value, operand);
  } else if constexpr (kStep == Step::kDivide) {
    return Lanes::Divide(value, operand);
  } else {
    return RoundToBf16<Lanes>(Lanes::Divide(value, operand));
  }
}

template <Rule kRule>
DWS_QUANTISE_CODE uint32_t EncodeElement(const std::byte* element, float operand) {
  return EncodeValue<kRule>(OneLane::Load(element), operand);
}

template <Rule kRule>
DWS_QUANTISE_CODE void EncodeOneByOne(const std::byte* from, uint64_t count, float operand,
                                      std::byte* to) {
  if constexpr (CodesOf(kRule) == Codes::kE4m3) {
    for (uint64_t i = 0; i < count; ++i) {
      to[i] = static_cast<std::byte>(EncodeElement<kRule>(from + i * 2, operand));
    }
  } else {
    for (uint64_t i = 0; i < count; i += 2) {
      const uint32_t low = EncodeElement<kRule>(from + i * 2, operand);
      const uint32_t high = EncodeElement<kRule>(from + i * 2 + 2, operand);
      to[i / 2] = static_cast<std::byte>(low | high << 4);
    }
  }
}

// A run of elements with one operand. `plain`: neither they nor the operand can make a NaN.
template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE void EncodeElements(const std::byte* from, uint64_t count, float operand,
                                      bool plain, std::byte* to) {
  constexpr Codes kCodes = CodesOf(kRule);
  uint64_t done = 0;
  if constexpr (Lanes::kWidth > 1) {
    const typename Lanes::Floats operands = Lanes::Same(operand);
    for (; plain && done + Lanes::kWidth <= count; done += Lanes::kWidth) {
      const typename Lanes::Words codes = Encode<Lanes, kCodes>(
          Quotient<Lanes, StepOf(kRule)>(Lanes::Load(from + done * 2), operands));
      if constexpr (kCodes == Codes::kE4m3) {
        Lanes::StoreBytes(codes, to + done);
      } else {
        Lanes::StoreHalfBytes(codes, to + done / 2);
      }
    }
  }
  EncodeOneByOne<kRule>(from + done * 2, count - done, operand,
                        to + (kCodes == Codes::kE4m3 ? done : done / 2));
}

DWS_QUANTISE_CODE bool IsPlain(Step step, uint32_t amax, float operand) {
  const uint32_t bits = OneLane::Bits(operand) & kMagnitudeBits;
  return amax < kInfinityBits >> 16 && bits < kInfinityBits &&
         (step == Step::kMultiply || bits != 0);
}

template <Rule kRule>
DWS_QUANTISE_CODE void StoreScale(const Scale& scale, uint64_t tile, std::byte* scales) {
  constexpr uint32_t kBytes = ScaleBytes(kRule);
  if constexpr (kBytes == 4) {
    StoreLe<uint32_t>(scales + tile * 4, scale.stored);
  } else if constexpr (kBytes == 2) {
    StoreLe<uint16_t>(scales + tile * 2, static_cast<uint16_t>(scale.stored));
  } else if constexpr (kBytes == 1) {
    scales[tile] = static_cast<std::byte>(scale.stored);
  }
}

// Tiles are contiguous runs of elements: groups, rows.
template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE void RunRows(const TileJob& job) {
  constexpr bool kHalf = CodesOf(kRule) != Codes::kE4m3;
  const uint64_t size = job.tile_columns;
  const uint64_t matrix_tiles = job.rows * (job.columns / size);
  TensorScale tensor;
  uint64_t tensor_end = job.first;  // of the tiles that have this tensor scale
  for (uint64_t tile = job.first; tile < job.first + job.count; ++tile) {
    if (tile == tensor_end && job.tensor_amax != nullptr) {
      const uint64_t matrix = tile / matrix_tiles;
      tensor = MakeTensorScale<kRule>(job.tensor_amax[matrix]);
      tensor_end = (matrix + 1) * matrix_tiles;
    }
    const std::byte* const from = job.source + tile * size * 2;
    const uint32_t amax = Lanes::AbsMax(from, size);
    const Scale scale = MakeScale<kRule>(amax, tensor);
    StoreScale<kRule>(scale, tile, job.scales);
    if (job.amax != nullptr) job.amax[tile] = static_cast<uint16_t>(amax);
    EncodeElements<Lanes, kRule>(from, size, scale.operand,
                                 IsPlain(StepOf(kRule), amax, scale.operand),
                                 job.codes + (kHalf ? tile * size / 2 : tile * size));
  }
}

// Tiles are runs of a column's elements; their numbers, codes and scales are those of the
// transposed matrix.
template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE void RunColumns(const TileJob& job) {
  static_assert(CodesOf(kRule) != Codes::kE4m3);
  constexpr uint64_t kRows = 32;
  std::byte elements[kRows * 2];
  const uint64_t down = job.rows / kRows;
  for (uint64_t tile = job.first; tile < job.first + job.count; ++tile) {
    const uint64_t column = tile / down % job.columns;
    const uint64_t row = tile / down / job.columns * job.rows + tile % down * kRows;
    for (uint64_t r = 0; r < kRows; ++r) {
      std::memcpy(elements + r * 2, job.source + ((row + r) * job.columns + column) * 2, 2);
    }
    const uint32_t amax = Lanes::AbsMax(elements, kRows);
    const Scale scale = MakeScale<kRule>(amax, {});
    StoreScale<kRule>(scale, tile, job.scales);
    if (job.amax != nullptr) job.amax[tile] = static_cast<uint16_t>(amax);
    EncodeElements<Lanes, kRule>(elements, kRows, scale.operand,
                                 IsPlain(StepOf(kRule), amax, scale.operand),
                                 job.codes + tile * kRows / 2);
  }
}

// Tiles are elements, and there are no scales but the tensor's.
template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE void RunElements(const TileJob& job) {
  const uint64_t matrix_elements = job.rows * job.columns;
  const uint64_t end = job.first + job.count;
  for (uint64_t at = job.first; at < end;) {
    const uint64_t matrix = at / matrix_elements;
    const uint64_t stop = std::min(end, (matrix + 1) * matrix_elements);
    const uint32_t amax = job.tensor_amax[matrix];
    const Scale scale = MakeScale<kRule>(amax, MakeTensorScale<kRule>(amax));
    EncodeElements<Lanes, kRule>(job.source + at * 2, stop - at, scale.operand,
                                 IsPlain(StepOf(kRule), amax, scale.operand), job.codes + at);
    at = stop;
  }
}

// Tiles are squares, smaller at the edges.
template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE void RunSquares(const TileJob& job) {
  const uint64_t across = CeilDiv(job.columns, job.tile_columns);
  const uint64_t down = CeilDiv(job.rows, job.tile_rows);
  for (uint64_t tile = job.first; tile < job.first + job.count; ++tile) {
    const uint64_t matrix = tile / (across * down);
    const uint64_t row = tile / across % down * job.tile_rows;
    const uint64_t column = tile % across * job.tile_columns;
    const uint64_t rows = std::min(job.tile_rows, job.rows - row);
    const uint64_t columns = std::min(job.tile_columns, job.columns - column);
    const uint64_t begin = (matrix * job.rows + row) * job.columns + column;
    uint32_t amax = 0;
    for (uint64_t r = 0; r < rows; ++r) {
      amax = std::max(amax, Lanes::AbsMax(job.source + (begin + r * job.columns) * 2, columns));
    }
    const Scale scale = MakeScale<kRule>(amax, {});
    StoreScale<kRule>(scale, tile, job.scales);
    if (job.amax != nullptr) job.amax[tile] = static_cast<uint16_t>(amax);
    const bool plain = IsPlain(StepOf(kRule), amax, scale.operand);
    for (uint64_t r = 0; r < rows; ++r) {
      const uint64_t at = begin + r * job.columns;
      EncodeElements<Lanes, kRule>(job.source + at * 2, columns, scale.operand, plain,
                                   job.codes + at);
    }
  }
}

}  // namespace dws::quantise::kernels
