// What planning must come out as, element by element: tensors as arrays of labels, rules and
// placements applied to single elements, and plans executed on bytes. Shares no code with the
// planner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/mesh/plan.h"

namespace dws::mesh::naive {

// Names an element of a canonical tensor; kPadding names none.
struct Label {
  uint32_t tensor = 0;
  int64_t index = 0;  // row-major

  friend bool operator==(const Label&, const Label&) = default;
};
inline constexpr Label kPadding{.tensor = 0, .index = -1};

struct Array {
  std::vector<uint64_t> shape;
  std::vector<Label> labels;  // row-major
};

Array Canonical(uint32_t tensor, const std::vector<uint64_t>& shape);
Array Every(const Array& array, size_t dim, uint64_t parts, uint64_t first);
Array Row(const Array& array, uint64_t index);
Array Stack(const std::vector<Array>& parts);
Array Transpose(const Array& array, size_t a, size_t b);
Array Interleave(size_t dim, uint64_t groups, const std::vector<Array>& parts);
Array Repeat(const Array& array, size_t dim, uint64_t blocks, uint64_t times);
Array Pad(const Array& array, size_t dim, uint64_t extent);

// The indices of a dimension of `length` that a coordinate of an axis takes, as torch does it.
std::vector<uint64_t> TorchShard(const std::vector<uint64_t>& indices, const Placement& placement,
                                 uint32_t axis_size, uint32_t coordinate);

// What `rank` has in memory of a tensor, in order; empty: nothing.
std::vector<Label> LocalLabels(const Array& whole, const MeshTensor& tensor,
                               const MeshLayout& layout, uint32_t rank);

// "" if the plan, executed on bytes, gives each destination rank what it needs and writes each of
// its bytes once; else what is wrong. `source` and `destination` are the tensors of the layouts.
std::string Execute(const Plan& plan, const MeshLayout& source_layout,
                    const std::vector<Array>& source, const MeshLayout& destination_layout,
                    const std::vector<Array>& destination);

}  // namespace dws::mesh::naive
