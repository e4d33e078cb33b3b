// The place of one block's elements in live memory: a Place, counted from the block's first
// element.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/warp.h"

namespace dws::cuda::kernels {

inline constexpr uint32_t kBlockElementsMax = 65'536;

// The elements of an 8-byte word.
template <typename Bits>
inline constexpr uint32_t kWordElements = 8 / sizeof(Bits);

// Element `index` (below 8 / size) of a word.
template <typename Bits>
DWS_KERNEL Bits ElementOf(uint64_t word, uint32_t index) {
  return static_cast<Bits>(word >> (index * sizeof(Bits) * 8));
}

// Uniform (warp.h).
template <typename Bits>
class BlockPlace {
 public:
  // `elements` at most kBlockElementsMax.
  DWS_KERNEL BlockPlace(const Place& place, uint64_t first_element, uint32_t elements)
      : elements_(elements) {
    // Most places are one run, which this test finds: a division of such numbers takes longer than
    // many small blocks do.
    const bool in_first_run = first_element < place.run_elements;
    const uint64_t run = in_first_run ? 0 : first_element / place.run_elements;
    const uint64_t inside = first_element - run * place.run_elements;
    base_ = place.base + (run * place.stride_elements + inside) * sizeof(Bits);
    step_ = (place.stride_elements - place.run_elements) * sizeof(Bits);
    const uint64_t left = place.run_elements - inside;
    first_run_ = left < kBlockElementsMax ? static_cast<uint32_t>(left) : kBlockElementsMax;
    run_ = place.run_elements < kBlockElementsMax ? static_cast<uint32_t>(place.run_elements)
                                                  : kBlockElementsMax;
    inverse_ = 1.0F / static_cast<float>(run_);
    if (elements_ <= first_run_ && elements_ % kWordElements<Bits> == 0 && base_ % 8 == 0) {
      first_run_ = kPlain;
    }
  }

  DWS_KERNEL uint32_t elements() const { return elements_; }
  DWS_KERNEL uint32_t words() const {
    return (elements_ + kWordElements<Bits> - 1) / kWordElements<Bits>;
  }

  // The address of element `position` (below elements()) of the block.
  DWS_KERNEL uint64_t Address(uint32_t position) const {
    const uint64_t at = base_ + uint64_t{position} * sizeof(Bits);
    return position < first_run_ ? at : at + RunsBefore(position) * step_;
  }

  // Returns whether `count` elements from `position` on are contiguous and the first is at a
  // multiple of `align` bytes. If so, *address is the first one's.
  DWS_KERNEL bool SideBySide(uint32_t position, uint32_t count, uint32_t align,
                             uint64_t* address) const {
    if (position + count > elements_) return false;
    uint64_t at = base_ + uint64_t{position} * sizeof(Bits);
    if (position + count > first_run_) {
      const uint32_t runs = position < first_run_ ? 0 : RunsBefore(position);
      if (position + count > first_run_ + runs * run_) return false;
      at += runs * step_;
    }
    *address = at;
    return at % align == 0;
  }

  // Canonical word `number` (below words()) of the block, with zeros after the last element.
  DWS_KERNEL uint64_t LoadWord(uint32_t number) const {
    constexpr uint32_t kElements = kWordElements<Bits>;
    const uint32_t first = number * kElements;
    uint64_t address = 0;
    if (SideBySide(first, kElements, 8, &address)) return Load<uint64_t>(address);
    uint64_t word = 0;
    DWS_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) {
      if (first + i >= elements_) break;
      word |= uint64_t{Load<Bits>(Address(first + i))} << (i * sizeof(Bits) * 8 % 64);
    }
    return word;
  }

  // Like LoadWord, with less code if the block is plain, and slower if it is not.
  DWS_KERNEL uint64_t LoadOneWord(uint32_t number) const {
    if (first_run_ == kPlain) return Load<uint64_t>(base_ + uint64_t{number} * 8);
    constexpr uint32_t kElements = kWordElements<Bits>;
    const uint32_t first = number * kElements;
    uint64_t word = 0;
    DWS_NO_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) {
      if (first + i >= elements_) break;
      word |= uint64_t{Load<Bits>(Address(first + i))} << (i * sizeof(Bits) * 8 % 64);
    }
    return word;
  }

  // Writes the elements of word `number` that the block has.
  DWS_KERNEL void StoreWord(uint32_t number, uint64_t word) const {
    constexpr uint32_t kElements = kWordElements<Bits>;
    const uint32_t first = number * kElements;
    uint64_t address = 0;
    if (SideBySide(first, kElements, 8, &address)) {
      Store<uint64_t>(address, word);
      return;
    }
    DWS_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) {
      if (first + i >= elements_) break;
      Store<Bits>(Address(first + i), ElementOf<Bits>(word, i));
    }
  }

 private:
  // How many runs end before `position`, which is not in the first run. The result is exact: both
  // numbers have at most 17 bits, and adding a half keeps the quotient away from whole numbers.
  DWS_KERNEL uint32_t RunsBefore(uint32_t position) const {
    const float behind = static_cast<float>(position - first_run_) + 0.5F;
    return static_cast<uint32_t>(behind * inverse_) + 1;
  }

  // The block is contiguous, and its words are whole and aligned.
  static constexpr uint32_t kPlain = 0xFFFFFFFF;

  uint64_t base_ = 0;       // of the first element
  uint64_t step_ = 0;       // bytes skipped between two runs
  uint32_t first_run_ = 0;  // elements of the block's first run, at most kBlockElementsMax; or
                            // kPlain
  uint32_t run_ = 0;        // of every other run
  uint32_t elements_ = 0;
  float inverse_ = 1;  // of run_
};

}  // namespace dws::cuda::kernels
