// What a recipe computes: the rule for scales and codes, and what follows from the rule alone.
#pragma once

#include <cstdint>

namespace dws::quantise {

// How scales and codes are computed from a tile: one for each section of RECIPES.md.
enum class Rule : uint8_t {
  kDeepseek,         // E4M3, multiplied by the reciprocal of the scale
  kDeepseekDivide,   // E4M3, divided by the scale
  kDeepseekUe8m0,    // E4M3, the scale is a power of two
  kVllmChannel,      // E4M3, one scale a row
  kVllmTensor,       // E4M3, one scale a matrix
  kCompressedRow,    // E4M3, one BF16 scale a row
  kCompressedWhole,  // E4M3, one BF16 scale a matrix
  kMxFloor,          // E4M3, E8M0 scales rounded down
  kMxEven,         // E4M3, E8M0 scales rounded up from 1.9375, the end of the codes' largest binade
  kMxCompressed,   // E4M3, E8M0 scales rounded up from 1.75, as compressed-tensors
  kMxRceil,        // E4M3, E8M0 scales rounded up
  kInt4Amax7,      // INT4, amax / 7
  kInt4Amax7_5,    // INT4, amax / 7.5
  kNvfp4Modelopt,  // E2M1, as ModelOpt
  kNvfp4Compressed,  // E2M1, as compressed-tensors
  kMxfp4Triton,      // E2M1, E8M0 scales of columns, as triton_kernels
  kMxfp4Modelopt,    // E2M1, E8M0 scales of columns, as ModelOpt
};
inline constexpr uint32_t kRuleCount = static_cast<uint32_t>(Rule::kMxfp4Modelopt) + 1;

// The format of codes: one byte each (kE4m3), or two codes a byte, the first one in the low half.
// The last two round ties to the larger and to the smaller magnitude.
enum class Codes : uint8_t { kE4m3, kInt4, kE2m1, kE2m1Up, kE2m1Down };

// How an element becomes a quotient.
enum class Step : uint8_t {
  kMultiply,
  kDivide,
  kDivideBf16,  // and the quotient is rounded to BF16
};

constexpr Step StepOf(Rule rule) {
  switch (rule) {
    case Rule::kDeepseek:
    case Rule::kDeepseekUe8m0:
    case Rule::kVllmTensor:
    case Rule::kMxFloor:
    case Rule::kMxEven:
    case Rule::kMxCompressed:
    case Rule::kMxRceil:
    case Rule::kMxfp4Triton:
    case Rule::kMxfp4Modelopt:
      return Step::kMultiply;
    case Rule::kDeepseekDivide:
    case Rule::kVllmChannel:
    case Rule::kInt4Amax7:
    case Rule::kNvfp4Modelopt:
    case Rule::kNvfp4Compressed:
      return Step::kDivide;
    case Rule::kCompressedRow:
    case Rule::kCompressedWhole:
    case Rule::kInt4Amax7_5:
      return Step::kDivideBf16;
  }
  return Step::kDivide;
}

constexpr Codes CodesOf(Rule rule) {
  switch (rule) {
    case Rule::kInt4Amax7:
    case Rule::kInt4Amax7_5:
      return Codes::kInt4;
    case Rule::kNvfp4Modelopt:
    case Rule::kNvfp4Compressed:
      return Codes::kE2m1;
    case Rule::kMxfp4Triton:
      return Codes::kE2m1Up;
    case Rule::kMxfp4Modelopt:
      return Codes::kE2m1Down;
    default:
      return Codes::kE4m3;
  }
}

// The shape of tiles: squares, runs of elements of a row, single elements of a matrix with one
// scale, or runs of elements of a column, whose outputs are those of the transposed matrix.
enum class Tiles : uint8_t { kSquares, kRuns, kElements, kColumns };

constexpr Tiles TilesOf(Rule rule) {
  switch (rule) {
    case Rule::kDeepseek:
    case Rule::kDeepseekDivide:
    case Rule::kDeepseekUe8m0:
      return Tiles::kSquares;
    case Rule::kVllmTensor:
    case Rule::kCompressedWhole:
      return Tiles::kElements;
    case Rule::kMxfp4Triton:
    case Rule::kMxfp4Modelopt:
      return Tiles::kColumns;
    default:
      return Tiles::kRuns;
  }
}

// Returns whether codes depend on the amax of the matrix.
constexpr bool HasTensorScale(Rule rule) {
  switch (rule) {
    case Rule::kVllmTensor:
    case Rule::kCompressedWhole:
    case Rule::kNvfp4Modelopt:
    case Rule::kNvfp4Compressed:
      return true;
    default:
      return false;
  }
}

// Bytes of a tile's scale; 0: the rule has none.
constexpr uint32_t ScaleBytes(Rule rule) {
  switch (rule) {
    case Rule::kVllmTensor:
    case Rule::kCompressedWhole:
      return 0;
    case Rule::kDeepseek:
    case Rule::kDeepseekDivide:
    case Rule::kDeepseekUe8m0:
    case Rule::kVllmChannel:
      return 4;
    case Rule::kCompressedRow:
    case Rule::kInt4Amax7:
    case Rule::kInt4Amax7_5:
      return 2;
    default:
      return 1;
  }
}

}  // namespace dws::quantise
