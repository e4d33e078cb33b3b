#include "common/mesh/box.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/check.h"

namespace dws::mesh {
namespace {

// Elements [begin, end) of the part of `whole` that has the coordinates of `box` before `dim`.
// A row that is cut becomes a range of the next dimension, so only the two ends go deeper.
void AppendFlat(const Box& whole, size_t dim, uint64_t begin, uint64_t end, Box box,
                std::vector<Box>& boxes) {
  if (begin >= end) return;
  const uint64_t row = RowMajorStrides(whole.extent)[dim];
  uint64_t first = begin / row;
  const uint64_t last = end / row;
  const auto append_row = [&](uint64_t index, uint64_t from, uint64_t to) {
    Box inner = box;
    inner.lo[dim] = index;
    inner.extent[dim] = 1;
    AppendFlat(whole, dim + 1, from, to, inner, boxes);
  };
  if (first == last) return append_row(first, begin % row, end % row);
  if (begin % row != 0) append_row(first++, begin % row, row);
  if (first < last) {
    box.lo[dim] = first;
    box.extent[dim] = last - first;
    boxes.push_back(box);
  }
  if (end % row != 0) append_row(last, 0, end % row);
}

}  // namespace

Box WholeBox(const std::vector<uint64_t>& shape) {
  DWS_CHECK(shape.size() <= limits::kBoxDimsMax);
  Box box;
  std::copy(shape.begin(), shape.end(), box.extent.begin());
  return box;
}

uint64_t Volume(const Box& box) {
  uint64_t volume = 1;
  for (const uint64_t extent : box.extent) volume *= extent;
  return volume;
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box both;
  for (size_t d = 0; d < limits::kBoxDimsMax; ++d) {
    const uint64_t end = std::min(a.lo[d] + a.extent[d], b.lo[d] + b.extent[d]);
    both.lo[d] = std::max(a.lo[d], b.lo[d]);
    if (both.lo[d] >= end) return std::nullopt;
    both.extent[d] = end - both.lo[d];
  }
  return both;
}

Index RowMajorStrides(const Index& extent) {
  Index strides;
  uint64_t stride = 1;
  for (size_t d = limits::kBoxDimsMax; d-- > 0;) {
    strides[d] = stride;
    stride *= extent[d];
  }
  return strides;
}

std::vector<Box> FlatRangeBoxes(const std::vector<uint64_t>& shape, uint64_t begin, uint64_t end) {
  const Box whole = WholeBox(shape);
  DWS_CHECK(begin <= end && end <= Volume(whole));
  std::vector<Box> boxes;
  AppendFlat(whole, 0, begin, end, whole, boxes);
  return boxes;
}

std::string ToString(const Box& box, size_t dims) {
  std::string text = "[";
  for (size_t d = 0; d < dims; ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.lo[d], box.lo[d] + box.extent[d]);
  }
  return text + "]";
}

}  // namespace dws::mesh
