#include "tests/common/memory/cuda/live_slice.h"

#include <algorithm>
#include <cstring>

namespace dws::cuda {

SliceLayout RandomLayout(samples::Random& random, uint64_t elements) {
  const uint64_t offset = random.Chance(0.5) ? 0 : random.Below(9);
  if (random.Chance(0.4)) return {.offset_elements = offset};
  // Runs of a power of two, as tensors have, or of any length.
  const uint64_t run = random.Chance(0.5) ? uint64_t{1} << random.Below(17)
                                          : 1 + random.Below(std::max<uint64_t>(elements, 2));
  const uint64_t gap = random.Chance(0.2) ? 0 : random.Chance(0.5) ? run : random.Below(13);
  // Memory stays small.
  return {.run_elements = run,
          .stride_elements = run + std::min<uint64_t>(gap, 65'536),
          .offset_elements = offset};
}

LiveSlice::LiveSlice(KernelRunner& runner, ByteSpan elements, uint32_t element_bytes,
                     const SliceLayout& layout)
    : runner_(&runner),
      layout_(layout),
      element_count_(elements.size() / element_bytes),
      element_bytes_(element_bytes) {
  const uint64_t end = element_count_ == 0 ? 0 : OffsetOf(element_count_ - 1) + element_bytes;
  initial_.assign(end, std::byte{0xC3});
  for (uint64_t e = 0; e < element_count_; ++e) {
    std::memcpy(initial_.data() + OffsetOf(e), elements.data() + e * element_bytes, element_bytes);
  }
  address_ = runner.Put(initial_);
  place_ = {.base = address_ + layout.offset_elements * element_bytes,
            .run_elements = layout.run_elements,
            .stride_elements = layout.stride_elements};
}

uint64_t LiveSlice::OffsetOf(uint64_t element) const {
  return (layout_.offset_elements + element / layout_.run_elements * layout_.stride_elements +
          element % layout_.run_elements) *
         element_bytes_;
}

samples::Bytes LiveSlice::Read() const {
  const samples::Bytes memory = runner_->ReadBytes(address_, initial_.size());
  samples::Bytes elements(element_count_ * element_bytes_);
  for (uint64_t e = 0; e < element_count_; ++e) {
    std::memcpy(elements.data() + e * element_bytes_, memory.data() + OffsetOf(e), element_bytes_);
  }
  return elements;
}

bool LiveSlice::SurroundingsIntact() const {
  samples::Bytes memory = runner_->ReadBytes(address_, initial_.size());
  for (uint64_t e = 0; e < element_count_; ++e) {
    std::memcpy(memory.data() + OffsetOf(e), initial_.data() + OffsetOf(e), element_bytes_);
  }
  return memory == initial_;
}

}  // namespace dws::cuda
