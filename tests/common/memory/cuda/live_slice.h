// A slice in live memory of kernel tests: contiguous or in strided runs, at the offset of any
// element, with guard bytes around and between the runs.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/kernel_args.h"
#include "tests/common/delta/samples.h"
#include "tests/common/memory/cuda/kernel_runner.h"

namespace dws::cuda {

// The layout of a slice in memory.
struct SliceLayout {
  uint64_t run_elements = uint64_t{1} << 40;  // more than any slice has: contiguous
  uint64_t stride_elements = uint64_t{1} << 40;
  uint64_t offset_elements = 0;  // from a multiple of 16 bytes
};

// A random layout.
SliceLayout RandomLayout(samples::Random& random, uint64_t elements);

class LiveSlice {
 public:
  // Lays out `elements` (canonical bytes) in memory of `runner`, which must outlive this.
  LiveSlice(KernelRunner& runner, ByteSpan elements, uint32_t element_bytes,
            const SliceLayout& layout);

  const Place& place() const { return place_; }
  // The slice as it is now, canonical.
  samples::Bytes Read() const;
  // Returns whether all bytes outside the slice are unchanged.
  bool SurroundingsIntact() const;

 private:
  uint64_t OffsetOf(uint64_t element) const;

  KernelRunner* runner_;
  Place place_;
  SliceLayout layout_;
  uint64_t element_count_;
  uint32_t element_bytes_;
  uint64_t address_ = 0;
  samples::Bytes initial_;
};

}  // namespace dws::cuda
