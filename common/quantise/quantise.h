// Quantises tiles of a BF16 tensor, or of one slice of it, into memory of the caller. RECIPES.md
// defines the bits; they do not depend on the instruction set, on which tiles are computed
// together, or on the thread's floating-point mode.
//
// A caller that holds a canonical tensor and knows its changed delta blocks computes
// `grid.Touched(blocks)` and quantises those tiles again. If the recipe has a tensor scale, the
// caller first compares the amax with the one before: if it moved, all tiles change.
#pragma once

#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/instruction_set.h"
#include "common/quantise/kernels/tile_kernels.h"
#include "common/quantise/tile_grid.h"

namespace dws::quantise {

// Magnitudes as the bits of a BF16 without the sign: they sort like the numbers; kNanAmax and more
// is a NaN.
inline constexpr uint16_t kNanAmax = 0x7F81;

// Returns the largest magnitude of these BF16 elements (an even number of bytes: CHECK). The result
// for several runs is the largest of their results.
uint16_t AbsMax(InstructionSet set, ByteSpan elements);

// Returns the amax of each matrix of a whole tensor (grid.shape().elements() elements: CHECK).
std::vector<uint16_t> MatrixAmax(InstructionSet set, const TileGrid& grid, ByteSpan elements);

// Whole outputs, of which only the part of the tiles is written. Their sizes must fit the grid:
// CHECK.
struct Destination {
  MutableByteSpan codes;
  MutableByteSpan scales;  // empty if the recipe has none
  // The amax of each tile of the grid; empty if not wanted. Must be empty for a recipe whose tiles
  // are single elements.
  std::span<uint16_t> amax = {};
};

// Writes codes and scales of these tiles (in range: CHECK). If the recipe has a tensor scale,
// `tensor_amax` has one entry for each matrix: the largest magnitude of all tensors that share the
// scale. Otherwise it is empty. Threads: any number at a time, for different tiles; the elements
// must not change meanwhile.
void Quantise(InstructionSet set, const TileGrid& grid, ByteSpan elements,
              std::span<const uint16_t> tensor_amax, std::span<const TileRun> tiles,
              const Destination& to);

// Returns the codes of single elements (packed BF16), which may lie in any tiles. Each element
// comes with the amax of its tile, or another one that makes the same scale, and, if the recipe has
// a tensor scale, with the amax of its matrix. If the recipe's tiles are single elements,
// `tile_amax` is also the matrix's. One code a byte, whatever the format. The number of codes and
// of amax must be that of the elements: CHECK.
void QuantiseElements(InstructionSet set, const Recipe& recipe, ByteSpan elements,
                      std::span<const uint16_t> tile_amax, std::span<const uint16_t> tensor_amax,
                      MutableByteSpan codes);

// The largest magnitude of a tile (in range: CHECK) of a whole tensor.
uint16_t TileAmax(InstructionSet set, const TileGrid& grid, ByteSpan elements, uint64_t tile);

// The scale of a tile with this amax, in a matrix with that one (0 where the recipe has no tensor
// scale). If it is the same for two amax, so is the code of every element.
using kernels::TileScale;
TileScale ScaleOf(const Recipe& recipe, uint16_t tile_amax, uint16_t tensor_amax);

// The output kTensorScale of a recipe that has one (CHECK): a scale for each amax.
void WriteTensorScales(const Recipe& recipe, std::span<const uint16_t> tensor_amax,
                       MutableByteSpan to);

// The output kShape: rows and columns of the canonical tensor as int32, for each of its matrices.
void WriteShapes(const MatrixShape& shape, MutableByteSpan to);

}  // namespace dws::quantise
