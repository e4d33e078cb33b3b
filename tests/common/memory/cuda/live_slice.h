// A slice in live memory, as kernel tests lay it out: side by side or in strided runs, at any
// element's offset, with bytes around and between that nobody may touch.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/kernel_args.h"
#include "tests/common/delta/samples.h"
#include "tests/common/memory/cuda/kernel_runner.h"

namespace dws::cuda {

// How a slice lies.
struct SliceLayout {
  uint64_t run_elements = uint64_t{1} << 40;  // more than there are: side by side
  uint64_t stride_elements = uint64_t{1} << 40;
  uint64_t offset_elements = 0;  // from a multiple of 16 bytes
};

// One of many kinds, drawn.
SliceLayout RandomLayout(samples::Random& random, uint64_t elements);

class LiveSlice {
 public:
  // Lays out `elements` (canonical bytes) in memory of `runner`, which must outlive this.
  LiveSlice(KernelRunner& runner, ByteSpan elements, uint32_t element_bytes,
            const SliceLayout& layout);

  const Place& place() const { return place_; }
  // The slice as it is now, canonical.
  samples::Bytes Read() const;
  // Whether the bytes that are not the slice's are as they were.
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
