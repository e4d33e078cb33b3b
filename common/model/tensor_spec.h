// A canonical tensor as the trainer declares it: name, element type, shape, and how it is cut into
// slices.
//
// Slices are the cells of a grid, numbered in row-major order. They are the unit of ownership (a
// trainer rank owns a box of them), of attachment (a view of an engine holds a box of them) and of
// digests. *Slice order* is row-major over one slice's elements. Blocks are runs of
// limits::kBlockElements elements in slice order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace dws {

enum class DType : uint8_t {
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kF8E4M3 = 4,
  kF8E5M2 = 5,
  kF8E8M0 = 6,
  kU16 = 7,
  kI16 = 8,
  kF16 = 9,
  kBF16 = 10,
  kU32 = 11,
  kI32 = 12,
  kF32 = 13,
  kU64 = 14,
  kI64 = 15,
  kF64 = 16,
};

// The numbers are those of dws.v1.DType and of FORMAT.md; nullopt for any other number.
std::optional<DType> DTypeFromNumber(uint32_t number);
std::string_view ToString(DType dtype);  // "BF16", as safetensors writes it

// Bytes of one element: 1, 2, 4 or 8.
uint32_t ElementBytes(DType dtype);

// How values map to the integers whose differences are coded: floats by ordinal, integers
// unchanged.
enum class Mapping : uint8_t { kInteger, kFloat };
Mapping MappingOf(DType dtype);

// [begin, end) of one dimension.
struct DimRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }

  friend bool operator==(const DimRange&, const DimRange&) = default;
};

// The places where one dimension is cut: interior boundaries, strictly increasing.
struct Cuts {
  uint32_t dim = 0;
  std::vector<uint64_t> at;

  // The parts between the boundaries.
  uint32_t cell_count() const { return static_cast<uint32_t>(at.size()) + 1; }
  // What the cells [first, end) have of the dimension, which has `whole` indices.
  DimRange Cells(uint32_t first, uint32_t end, uint64_t whole) const {
    return {.begin = first == 0 ? 0 : at[first - 1], .end = end > at.size() ? whole : at[end - 1]};
  }

  friend bool operator==(const Cuts&, const Cuts&) = default;
};

// A tensor's name, dtype and shape, and the cuts that divide it into slices.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<uint64_t> shape;  // row-major; empty = scalar
  std::vector<Cuts> cuts;       // by ascending dimension, none empty; none at all = one slice

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;

  // The functions below need a spec that Validate accepted.
  uint64_t ElementCount() const;
  uint64_t SizeBytes() const { return ElementCount() * ElementBytes(dtype); }
  uint32_t SliceCount() const;
  // What a slice has of each dimension.
  std::vector<DimRange> Slice(uint32_t slice) const;
  uint64_t SliceElements(uint32_t slice) const;
  uint64_t SliceBytes(uint32_t slice) const { return SliceElements(slice) * ElementBytes(dtype); }
  // Blocks of one slice: ceil(elements / kBlockElements); 0 for an empty slice.
  uint32_t SliceBlocks(uint32_t slice) const;
  // The digest's number of the first word of each of `slices`, ascending (FORMAT.md, "Digest").
  std::vector<uint64_t> FirstWords(std::span<const uint32_t> slices) const;
  // Returns whether all slices are whole words: if so, FirstWords takes no time for the other
  // slices.
  bool HasWholeWords() const;
};

// INVALID_ARGUMENT: the spec is not valid; the message names the tensor and the mistake.
Status Validate(const TensorSpec& spec);

// "BF16 [4096, 512] cut on dim 0 at {1024, 2048, 3072}", for messages.
std::string ToString(const TensorSpec& spec);

// Sizes by dimension.
std::vector<uint64_t> ShapeOf(const std::vector<DimRange>& ranges);

// Elements of block `block` of a slice with `slice_elements` elements.
uint32_t BlockElements(uint64_t slice_elements, uint32_t block);

// The places of a slice's elements in memory: `run_count` runs of `run_elements` elements that
// follow each other in slice order, `stride_elements` apart. A contiguous slice is one run.
struct StridedRuns {
  uint64_t run_elements = 0;
  uint64_t run_count = 0;
  uint64_t stride_elements = 0;
};

// Returns the runs of an array of `shape` with `strides` (in elements), in row-major order.
// Contiguous dimensions are merged. INVALID_ARGUMENT: two levels of stride remain; such a view
// cannot be mapped.
Result<StridedRuns> CoalesceRuns(const std::vector<uint64_t>& shape,
                                 const std::vector<uint64_t>& strides);

// The place of a box of elements in an array that holds a larger box.
struct BoxRuns {
  uint64_t first_element = 0;  // from the first one of the array
  StridedRuns runs;
};

// Returns the runs of the box `inner` in an array that holds the box `outer`, which contains it
// (CHECK), with `strides` (in elements). INVALID_ARGUMENT: as CoalesceRuns.
Result<BoxRuns> RunsWithin(const std::vector<DimRange>& outer, const std::vector<DimRange>& inner,
                           const std::vector<uint64_t>& strides);

// Row-major strides of `shape`, in elements.
std::vector<uint64_t> RowMajorStrides(const std::vector<uint64_t>& shape);

}  // namespace dws
