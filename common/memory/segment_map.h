// The place of one slice in memory: the strided mapping between slice order and addresses. Used by
// the receiver for every attached view, and by the sender to read resident shards.
//
// Bounds are checked once, in Create; callers must pass valid element numbers (CHECK).
#pragma once

#include <cstdint>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/memory/staged_writes.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Checks that the runs of a slice whose first element is at `offset_bytes` of a region lie in it.
// INVALID_ARGUMENT: they extend beyond the region, overlap each other (run_count > 1 with
// stride_elements < run_elements), or element_bytes is not 1, 2, 4 or 8.
Status CheckRuns(uint64_t region_bytes, uint64_t offset_bytes, const StridedRuns& runs,
                 uint32_t element_bytes);

// A slice to read. Copyable; does not own the memory. Threads: safe from any, if access to the
// memory itself is.
class ConstSegmentMap {
 public:
  // The slice's first element is at `region[offset_bytes]`. INVALID_ARGUMENT: CheckRuns refuses it.
  static Result<ConstSegmentMap> Create(ByteSpan region, uint64_t offset_bytes,
                                        const StridedRuns& runs, uint32_t element_bytes);

  ConstSegmentMap() = default;

  uint64_t element_count() const { return runs_.run_elements * runs_.run_count; }
  uint32_t element_bytes() const { return element_bytes_; }
  // Returns the distance of element `element` (in slice order) from the first one.
  uint64_t OffsetBytes(uint64_t element) const;
  const std::byte* Address(uint64_t element) const { return base_ + OffsetBytes(element); }

  // Returns the memory of elements [first, first + count) if they are contiguous, else an empty
  // span.
  ByteSpan Contiguous(uint64_t first, uint64_t count) const;
  // The number of contiguous pieces of the elements [first, first + count); count is at least 1.
  uint64_t PieceCount(uint64_t first, uint64_t count) const;

  // Sets offsets[i] to the distance in bytes of element first + positions[i] from Address(first);
  // positions ascend and are below `count`. Returns true only if all offsets fit 32 bits, and if
  // every 8-byte word of the canonical bytes from `first` on that holds one of these elements is
  // contiguous in memory and inside the `count` elements. If it returns false, `offsets` has no
  // meaning.
  bool WordOffsets(uint64_t first, uint64_t count, std::span<const uint16_t> positions,
                   uint32_t* offsets) const;

  // Copies elements [first, first + out.size() / element_bytes) to `out`, in slice order. `out`
  // holds whole elements.
  void Gather(uint64_t first, MutableByteSpan out) const;

 private:
  friend class SegmentMap;

  const std::byte* base_ = nullptr;
  StridedRuns runs_;
  uint32_t element_bytes_ = 1;
};

// A slice to read and write. Copyable; does not own the memory.
class SegmentMap {
 public:
  // Errors as ConstSegmentMap::Create.
  static Result<SegmentMap> Create(MutableByteSpan region, uint64_t offset_bytes,
                                   const StridedRuns& runs, uint32_t element_bytes);

  SegmentMap() = default;

  uint64_t element_count() const { return source_.element_count(); }
  uint32_t element_bytes() const { return source_.element_bytes(); }
  std::byte* Address(uint64_t element) const { return base_ + source_.OffsetBytes(element); }
  void Gather(uint64_t first, MutableByteSpan out) const { source_.Gather(first, out); }
  MutableByteSpan Contiguous(uint64_t first, uint64_t count) const;
  uint64_t PieceCount(uint64_t first, uint64_t count) const {
    return source_.PieceCount(first, count);
  }
  bool WordOffsets(uint64_t first, uint64_t count, std::span<const uint16_t> positions,
                   uint32_t* offsets) const {
    return source_.WordOffsets(first, count, positions, offsets);
  }

  // Writes consecutive elements from `first` on at once. `bytes` holds whole elements in slice
  // order.
  void Write(uint64_t first, ByteSpan bytes) const;

  // Stages a block for a later Scatter. The block begins at element `first`; `new_block` holds its
  // new bytes in slice order. Stages the elements at `positions` (ascending, relative to `first`).
  void StageElements(uint64_t first, std::span<const uint16_t> positions, ByteSpan new_block,
                     StagedWrites& staged) const;
  // Like StageElements, for all elements of the block.
  void StageAll(uint64_t first, ByteSpan new_block, StagedWrites& staged) const;

 private:
  std::byte* base_ = nullptr;
  ConstSegmentMap source_;
};

}  // namespace dws
