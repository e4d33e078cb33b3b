// The inner loops of quantisation: codes and scales of a run of tiles. One variant for each
// instruction set; all write the same bytes. The caller has set the processor's floating-point mode
// (common/base/float_environment.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/instruction_set.h"
#include "common/quantise/kernels/rule.h"

namespace dws::quantise::kernels {

// Tiles of one tensor, or of one slice of it. The memory may have any alignment.
struct TileJob {
  const std::byte* source = nullptr;  // BF16, row-major
  uint64_t rows = 0;                  // of one matrix
  uint64_t columns = 0;
  uint64_t tile_rows = 0;  // at most
  uint64_t tile_columns = 0;
  uint64_t first = 0;  // tile: row-major in a matrix, matrix after matrix
  uint64_t count = 0;
  const uint16_t* tensor_amax = nullptr;  // of each matrix, where the rule has a tensor scale
  std::byte* codes = nullptr;             // of the whole tensor
  std::byte* scales = nullptr;
  uint16_t* amax = nullptr;  // of each tile of the tensor; null: not wanted
};

// Elements of any tiles, each with the amax of its tile, and of its matrix.
struct ElementJob {
  const std::byte* elements = nullptr;    // BF16, packed
  const uint16_t* amax = nullptr;         // of a rule without scales of tiles: of its matrix
  const uint16_t* tensor_amax = nullptr;  // where the rule has a tensor scale
  uint64_t count = 0;
  std::byte* codes = nullptr;  // one a byte, whatever the format
};

void QuantiseTiles(InstructionSet set, Rule rule, const TileJob& job);
void QuantiseElements(InstructionSet set, Rule rule, const ElementJob& job);

// The scale of a tile with its own amax and that of its matrix: the bits of the stored scale, and
// of the operand by which its elements are multiplied or divided.
struct TileScale {
  uint32_t stored = 0;
  uint32_t operand = 0;

  friend bool operator==(const TileScale&, const TileScale&) = default;
};
TileScale TileScaleOf(Rule rule, uint16_t amax, uint16_t tensor_amax);

// The largest magnitude of `count` BF16 elements, as bits without the sign: 0x7F80 for an infinity,
// above for a NaN.
uint16_t AbsMax(InstructionSet set, const std::byte* elements, uint64_t count);

// The bits of the scale of a matrix with this amax.
uint32_t TensorScaleBits(Rule rule, uint16_t amax);

// The variants.
void QuantiseTilesPortable(Rule rule, const TileJob& job);
void QuantiseTilesAvx2(Rule rule, const TileJob& job);
void QuantiseTilesAvx512(Rule rule, const TileJob& job);
void QuantiseElementsPortable(Rule rule, const ElementJob& job);
void QuantiseElementsAvx2(Rule rule, const ElementJob& job);
void QuantiseElementsAvx512(Rule rule, const ElementJob& job);
uint16_t AbsMaxPortable(const std::byte* elements, uint64_t count);
uint16_t AbsMaxAvx2(const std::byte* elements, uint64_t count);
uint16_t AbsMaxAvx512(const std::byte* elements, uint64_t count);

}  // namespace dws::quantise::kernels
