// Boxes of the cells of a tensor's grid: the part that a trainer rank owns, or that a view of an
// engine holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Consecutive cells along one dimension that is cut.
struct CellRange {
  uint32_t first = 0;
  uint32_t count = 1;

  uint32_t end() const { return first + count; }

  friend bool operator==(const CellRange&, const CellRange&) = default;
};

// One range for each entry of TensorSpec::cuts, in that order: empty for a tensor without cuts. A
// cell is a slice of the tensor.
using CellBox = std::vector<CellRange>;

// All slices of a tensor.
CellBox AllCells(const TensorSpec& spec);

// INVALID_ARGUMENT, naming the tensor: another number of ranges than the tensor has dimensions that
// are cut, or a range without cells or outside the grid. The functions below need a box for which
// it is OK.
Status CheckCells(const TensorSpec& spec, const CellBox& cells);

uint32_t CellCount(const CellBox& cells);

// The numbers, in the tensor, of the slices in the box: ascending, the box's row-major order.
std::vector<uint32_t> SlicesIn(const TensorSpec& spec, const CellBox& cells);

// The place of a slice of the tensor in SlicesIn; nullopt if it is not in the box.
std::optional<uint32_t> NumberIn(const TensorSpec& spec, const CellBox& cells, uint32_t slice);

// The elements of the tensor in the box: a range of each of its dimensions.
std::vector<DimRange> RangesOf(const TensorSpec& spec, const CellBox& cells);

// Returns the cells along one dimension, of `whole` indices, that make up `range`, which is not
// empty; nullopt: `range` has only a part of some cell.
std::optional<CellRange> CellsOf(const Cuts& along, uint64_t whole, DimRange range);

// "slices 1 + 2", or by dimension "cells 1 + 2 on dim 0, 0 + 1 on dim 1", for messages.
std::string ToString(const TensorSpec& spec, const CellBox& cells);

}  // namespace dws
