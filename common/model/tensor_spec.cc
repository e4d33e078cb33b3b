#include "common/model/tensor_spec.h"

#include <algorithm>
#include <numeric>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

uint64_t Product(const std::vector<uint64_t>& shape) {
  uint64_t product = 1;
  for (const uint64_t extent : shape) product *= extent;
  return product;
}

Status CheckCuts(const TensorSpec& spec, const Cuts& cuts) {
  if (cuts.dim >= spec.shape.size()) {
    return InvalidArgumentError("tensor '{}' is cut on dim {} but has {} dimensions", spec.name,
                                cuts.dim, spec.shape.size());
  }
  if (cuts.at.empty()) {
    return InvalidArgumentError("tensor '{}' names dim {} as cut, but no boundary on it", spec.name,
                                cuts.dim);
  }
  uint64_t last = 0;
  for (const uint64_t cut : cuts.at) {
    if (cut <= last || cut >= spec.shape[cuts.dim]) {
      return InvalidArgumentError("tensor '{}': cut {} on dim {} is not strictly between {} and {}",
                                  spec.name, cut, cuts.dim, last, spec.shape[cuts.dim]);
    }
    last = cut;
  }
  return OkStatus();
}

// "cut on dim 0 at {1, 2}"; a grid may have thousands of cuts, a message may not.
std::string ToString(const Cuts& cuts) {
  constexpr size_t kShown = 16;
  const size_t shown = std::min(kShown, cuts.at.size());
  const auto end = cuts.at.begin() + static_cast<long>(shown);
  std::string text = fmt::format("dim {} at {{{}", cuts.dim, fmt::join(cuts.at.begin(), end, ", "));
  if (shown == cuts.at.size()) return text + "}";
  return text + fmt::format(", ... {}}} ({} parts)", cuts.at.back(), cuts.at.size() + 1);
}

// Adds up the elements before a cell in row-major order. For each dimension these are the cells
// with a smaller number on it: the product of the cell's ranges on the earlier dimensions, the
// indices before the cell on this one, and the whole later dimensions.
uint64_t ElementsBefore(const TensorSpec& spec, uint32_t slice) {
  const std::vector<DimRange> ranges = spec.Slice(slice);
  uint64_t rest = spec.ElementCount();
  if (rest == 0) return 0;
  uint64_t before = 0;
  uint64_t inside = 1;
  // Dimensions that are not cut are part of every cell.
  for (size_t dim = 0, c = 0; dim < spec.shape.size(); ++dim) {
    if (c == spec.cuts.size() || spec.cuts[c].dim != dim) continue;
    ++c;
    rest /= spec.shape[dim];
    before += inside * ranges[dim].begin * rest;
    inside *= ranges[dim].size();
  }
  return before;
}

}  // namespace

std::optional<DType> DTypeFromNumber(uint32_t number) {
  if (number < 1 || number > 16) return std::nullopt;
  return static_cast<DType>(number);
}

std::string_view ToString(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "BOOL";
    case DType::kU8:
      return "U8";
    case DType::kI8:
      return "I8";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E5M2:
      return "F8_E5M2";
    case DType::kF8E8M0:
      return "F8_E8M0";
    case DType::kU16:
      return "U16";
    case DType::kI16:
      return "I16";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kU32:
      return "U32";
    case DType::kI32:
      return "I32";
    case DType::kF32:
      return "F32";
    case DType::kU64:
      return "U64";
    case DType::kI64:
      return "I64";
    case DType::kF64:
      return "F64";
  }
  return "unknown";
}

uint32_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E8M0:
      return 1;
    case DType::kU16:
    case DType::kI16:
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kU32:
    case DType::kI32:
    case DType::kF32:
      return 4;
    case DType::kU64:
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 1;
}

Mapping MappingOf(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      return Mapping::kFloat;
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E8M0:  // an unsigned exponent: its bits already have the order of its values
    case DType::kU16:
    case DType::kI16:
    case DType::kU32:
    case DType::kI32:
    case DType::kU64:
    case DType::kI64:
      return Mapping::kInteger;
  }
  return Mapping::kInteger;
}

uint64_t TensorSpec::ElementCount() const { return Product(shape); }

uint32_t TensorSpec::SliceCount() const {
  uint32_t count = 1;
  for (const Cuts& along : cuts) count *= along.cell_count();
  return count;
}

std::vector<DimRange> TensorSpec::Slice(uint32_t slice) const {
  DWS_CHECK(slice < SliceCount());
  std::vector<DimRange> ranges;
  ranges.reserve(shape.size());
  for (const uint64_t whole : shape) ranges.push_back({.begin = 0, .end = whole});
  for (size_t c = cuts.size(); c-- > 0;) {
    const uint32_t cell = slice % cuts[c].cell_count();
    slice /= cuts[c].cell_count();
    ranges[cuts[c].dim] = cuts[c].Cells(cell, cell + 1, shape[cuts[c].dim]);
  }
  return ranges;
}

uint64_t TensorSpec::SliceElements(uint32_t slice) const {
  DWS_CHECK(slice < SliceCount());
  uint64_t elements = 1;
  size_t c = cuts.size();
  for (size_t dim = shape.size(); dim-- > 0;) {
    if (c == 0 || cuts[c - 1].dim != dim) {
      elements *= shape[dim];
      continue;
    }
    const uint32_t cell = slice % cuts[--c].cell_count();
    slice /= cuts[c].cell_count();
    elements *= cuts[c].Cells(cell, cell + 1, shape[dim]).size();
  }
  return elements;
}

uint32_t TensorSpec::SliceBlocks(uint32_t slice) const {
  return static_cast<uint32_t>(CeilDiv(SliceElements(slice), limits::kBlockElements));
}

bool TensorSpec::HasWholeWords() const {
  uint64_t divisor = ElementBytes(dtype);  // of the bytes of every slice
  size_t c = 0;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    uint64_t extent = shape[dim];
    if (c < cuts.size() && cuts[c].dim == dim) {
      for (const uint64_t cut : cuts[c].at) extent = std::gcd(extent, cut);
      ++c;
    }
    divisor = std::gcd(divisor * (extent % 8), uint64_t{8});
  }
  return divisor % 8 == 0;
}

std::vector<uint64_t> TensorSpec::FirstWords(std::span<const uint32_t> slices) const {
  // A full block is a whole number of words, so only a slice's last block can have a padded tail.
  std::vector<uint64_t> first_words;
  first_words.reserve(slices.size());
  if (HasWholeWords()) {
    for (const uint32_t slice : slices) {
      first_words.push_back(ElementsBefore(*this, slice) * ElementBytes(dtype) / 8);
    }
    return first_words;
  }
  uint64_t words = 0;
  uint32_t s = 0;
  for (const uint32_t slice : slices) {
    DWS_CHECK(s <= slice);
    for (; s < slice; ++s) words += CeilDiv(SliceBytes(s), 8);
    first_words.push_back(words);
  }
  return first_words;
}

uint32_t BlockElements(uint64_t slice_elements, uint32_t block) {
  const uint64_t first = uint64_t{block} * limits::kBlockElements;
  DWS_CHECK(first < slice_elements);
  return static_cast<uint32_t>(std::min<uint64_t>(slice_elements - first, limits::kBlockElements));
}

Status Validate(const TensorSpec& spec) {
  if (spec.name.empty() || spec.name.size() > limits::kTensorNameBytesMax) {
    return InvalidArgumentError("a tensor name has {} bytes, expected 1 to {}", spec.name.size(),
                                limits::kTensorNameBytesMax);
  }
  if (spec.shape.size() > limits::kTensorRankMax) {
    return InvalidArgumentError("tensor '{}' has {} dimensions, at most {} are supported",
                                spec.name, spec.shape.size(), limits::kTensorRankMax);
  }
  uint64_t bytes = ElementBytes(spec.dtype);
  for (const uint64_t extent : spec.shape) {
    if (extent != 0 && bytes > limits::kTensorBytesMax / extent) {
      return InvalidArgumentError("tensor '{}' is larger than {} bytes", spec.name,
                                  limits::kTensorBytesMax);
    }
    bytes *= extent;
  }
  uint64_t slices = 1;
  for (size_t c = 0; c < spec.cuts.size(); ++c) {
    if (c > 0 && spec.cuts[c].dim <= spec.cuts[c - 1].dim) {
      return InvalidArgumentError("tensor '{}': dim {} is cut after dim {}, expected ascending",
                                  spec.name, spec.cuts[c].dim, spec.cuts[c - 1].dim);
    }
    if (spec.cuts[c].at.size() > limits::kCutsMax) {
      return InvalidArgumentError("tensor '{}' has {} cuts on dim {}, at most {} are supported",
                                  spec.name, spec.cuts[c].at.size(), spec.cuts[c].dim,
                                  limits::kCutsMax);
    }
    DWS_RETURN_IF_ERROR(CheckCuts(spec, spec.cuts[c]));
    slices *= spec.cuts[c].cell_count();
    if (slices > limits::kTensorSlicesMax) {
      return InvalidArgumentError(
          "tensor '{}' has more than {} slices (it is {}): declare it as several tensors, or with "
          "fewer cuts",
          spec.name, limits::kTensorSlicesMax, ToString(spec));
    }
  }
  return OkStatus();
}

std::string ToString(const TensorSpec& spec) {
  std::string text = fmt::format("{} [{}]", ToString(spec.dtype), fmt::join(spec.shape, ", "));
  if (spec.cuts.empty()) return text + " uncut";
  for (size_t c = 0; c < spec.cuts.size(); ++c) {
    text += (c == 0 ? " cut on " : ", ") + ToString(spec.cuts[c]);
  }
  return text;
}

std::vector<uint64_t> ShapeOf(const std::vector<DimRange>& ranges) {
  std::vector<uint64_t> shape;
  shape.reserve(ranges.size());
  for (const DimRange& range : ranges) shape.push_back(range.size());
  return shape;
}

std::vector<uint64_t> RowMajorStrides(const std::vector<uint64_t>& shape) {
  std::vector<uint64_t> strides(shape.size());
  uint64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

Result<BoxRuns> RunsWithin(const std::vector<DimRange>& outer, const std::vector<DimRange>& inner,
                           const std::vector<uint64_t>& strides) {
  DWS_CHECK(inner.size() == outer.size() && strides.size() == outer.size());
  BoxRuns box;
  for (size_t dim = 0; dim < outer.size(); ++dim) {
    DWS_CHECK(outer[dim].begin <= inner[dim].begin && inner[dim].end <= outer[dim].end);
    box.first_element += (inner[dim].begin - outer[dim].begin) * strides[dim];
  }
  DWS_ASSIGN_OR_RETURN(box.runs, CoalesceRuns(ShapeOf(inner), strides));
  return box;
}

Result<StridedRuns> CoalesceRuns(const std::vector<uint64_t>& shape,
                                 const std::vector<uint64_t>& strides) {
  if (shape.size() != strides.size()) {
    return InvalidArgumentError("{} strides for {} dimensions", strides.size(), shape.size());
  }
  StridedRuns runs{.run_elements = 1, .run_count = 1, .stride_elements = 0};
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (runs.run_count == 1 && strides[i] == runs.run_elements) {
      runs.run_elements *= shape[i];
    } else if (runs.run_count == 1 && strides[i] >= runs.run_elements) {
      runs.run_count = shape[i];
      runs.stride_elements = strides[i];
    } else if (runs.run_count != 1 && strides[i] == runs.stride_elements * runs.run_count) {
      runs.run_count *= shape[i];
    } else {
      return InvalidArgumentError(
          "shape [{}] with strides [{}] does not reduce to runs of one stride; hand over a "
          "contiguous tensor, and cut the dimensions before the last one that is cut into single "
          "indices, or only one dimension",
          fmt::join(shape, ", "), fmt::join(strides, ", "));
    }
  }
  return runs;
}

}  // namespace dws
