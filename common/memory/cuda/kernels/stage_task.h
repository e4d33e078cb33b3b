// The input and output of staging one block, and the codec's functions on elements
// (common/delta/FORMAT.md, "Ordinals").
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/payload_bits.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

template <typename Bits>
inline constexpr uint32_t kElementBits = sizeof(Bits) * 8;

template <typename Bits>
DWS_KERNEL Bits ToOrdinal(Bits bits, bool is_float) {
  constexpr uint32_t kTop = kElementBits<Bits> - 1;
  constexpr Bits kBelow = static_cast<Bits>((uint64_t{1} << kTop) - 1);
  return is_float && (bits >> kTop & 1) != 0 ? static_cast<Bits>(bits ^ kBelow) : bits;
}

// Returns the element whose ordinal is that of `old` plus `step`, modulo 2^kElementBits.
template <typename Bits>
DWS_KERNEL Bits FromStep(Bits old, Bits step, bool is_float) {
  return ToOrdinal(static_cast<Bits>(ToOrdinal(old, is_float) + step), is_float);
}

// The magnitude byte, by which class-split classifies floats.
template <typename Bits>
DWS_KERNEL uint32_t MagnitudeByte(Bits bits) {
  if constexpr (sizeof(Bits) == 1) {
    return bits & 0x7FU;
  } else {
    return static_cast<uint32_t>(bits >> (kElementBits<Bits> - 9)) & 0xFFU;
  }
}

// `magnitude` with a sign, modulo 2^kElementBits.
template <typename Bits>
DWS_KERNEL Bits SignedStep(uint64_t magnitude, bool negative) {
  return static_cast<Bits>(negative ? 0 - magnitude : magnitude);
}

// Returns whether a step of that magnitude exists: 2^(w-1) exists only as a negative step.
template <typename Bits>
DWS_KERNEL bool IsStep(uint64_t magnitude, bool negative) {
  constexpr uint64_t kLargest = uint64_t{1} << (kElementBits<Bits> - 1);
  return negative ? magnitude <= kLargest : magnitude < kLargest;
}

// One block, and the addresses of its parts. Uniform.
template <typename Bits>
struct StageTask {
  DWS_KERNEL StageTask(const Warp& its_warp, const StageArgs& args, const StageBlock& its_block)
      : warp(its_warp),
        payload(args.payloads + its_block.payload, its_block.payload_bytes),
        place(ItemAt<Place>(args.places, its_block.place), its_block.first_element,
              its_block.elements),
        positions(args.arena + its_block.staged),
        values(positions + StagedPositionsBytes(its_block.nnz)),
        first_word(its_block.first_word),
        elements(its_block.elements),
        nnz(its_block.nnz),
        parameters(its_block.parameters),
        is_float(its_block.element.is_float != 0) {}

  // For sparse blocks: the addresses for change number `change`, which is below nnz.
  DWS_KERNEL uint64_t PositionAt(uint32_t change) const {
    return positions + uint64_t{change} * sizeof(uint16_t);
  }
  DWS_KERNEL uint64_t ValueAt(uint32_t change) const {
    return values + uint64_t{change} * sizeof(Bits);
  }
  // The number of changes in the round that begins with change `begin`.
  DWS_KERNEL uint32_t Round(uint32_t begin) const {
    return nnz - begin < Warp::kLanes ? nnz - begin : Warp::kLanes;
  }

  const Warp& warp;
  const PayloadBits payload;
  const BlockPlace<Bits> place;
  const uint64_t positions;  // addresses; dense blocks have their values at `positions`
  const uint64_t values;
  const uint64_t first_word;
  const uint32_t elements;
  const uint32_t nnz;
  const uint32_t parameters;
  const bool is_float;
};

}  // namespace dws::cuda::kernels
