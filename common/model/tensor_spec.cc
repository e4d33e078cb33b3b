#include "common/model/tensor_spec.h"

#include <algorithm>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// The product of `shape` with dimension `dim` replaced by `length`. A `dim` past the end replaces
// nothing.
uint64_t Product(const std::vector<uint64_t>& shape, size_t dim, uint64_t length) {
  uint64_t product = 1;
  for (size_t i = 0; i < shape.size(); ++i) product *= i == dim ? length : shape[i];
  return product;
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

uint64_t TensorSpec::ElementCount() const { return Product(shape, shape.size(), 0); }

SliceRange TensorSpec::Slice(uint32_t slice) const {
  DWS_CHECK(slice < SliceCount());
  const uint64_t whole = shape.empty() ? 1 : shape[cut_dim];
  return {.begin = slice == 0 ? 0 : cuts[slice - 1],
          .end = slice == cuts.size() ? whole : cuts[slice]};
}

uint64_t TensorSpec::SliceElements(uint32_t slice) const {
  const SliceRange range = Slice(slice);
  return Product(shape, cut_dim, range.end - range.begin);
}

uint32_t TensorSpec::SliceBlocks(uint32_t slice) const {
  return static_cast<uint32_t>(CeilDiv(SliceElements(slice), limits::kBlockElements));
}

uint64_t TensorSpec::SliceFirstWord(uint32_t slice) const {
  // A full block is a whole number of words, so only a slice's last block can have a padded tail.
  uint64_t words = 0;
  for (uint32_t s = 0; s < slice; ++s) words += CeilDiv(SliceBytes(s), 8);
  return words;
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
  if (spec.cuts.size() > limits::kCutsMax) {
    return InvalidArgumentError("tensor '{}' has {} cuts, at most {} are supported", spec.name,
                                spec.cuts.size(), limits::kCutsMax);
  }
  if (spec.cuts.empty()) {
    if (spec.cut_dim != 0) {
      return InvalidArgumentError("tensor '{}' has no cuts but cut_dim {}, expected 0", spec.name,
                                  spec.cut_dim);
    }
    return OkStatus();
  }
  if (spec.cut_dim >= spec.shape.size()) {
    return InvalidArgumentError("tensor '{}' is cut on dim {} but has {} dimensions", spec.name,
                                spec.cut_dim, spec.shape.size());
  }
  uint64_t last = 0;
  for (const uint64_t cut : spec.cuts) {
    if (cut <= last || cut >= spec.shape[spec.cut_dim]) {
      return InvalidArgumentError("tensor '{}': cut {} on dim {} is not strictly between {} and {}",
                                  spec.name, cut, spec.cut_dim, last, spec.shape[spec.cut_dim]);
    }
    last = cut;
  }
  return OkStatus();
}

std::string ToString(const TensorSpec& spec) {
  std::string text = fmt::format("{} [{}]", ToString(spec.dtype), fmt::join(spec.shape, ", "));
  if (spec.cuts.empty()) return text + " uncut";
  constexpr size_t kShown = 16;  // a grid may have thousands of cuts, a message may not
  const size_t shown = std::min(kShown, spec.cuts.size());
  text +=
      fmt::format(" cut on dim {} at {{{}", spec.cut_dim,
                  fmt::join(spec.cuts.begin(), spec.cuts.begin() + static_cast<long>(shown), ", "));
  if (shown == spec.cuts.size()) return text + "}";
  return text + fmt::format(", ... {}}} ({} slices)", spec.cuts.back(), spec.SliceCount());
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
          "contiguous "
          "tensor or a slice of one",
          fmt::join(shape, ", "), fmt::join(strides, ", "));
    }
  }
  return runs;
}

}  // namespace dws
