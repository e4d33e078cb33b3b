// How warps share the work items of a launch, and how items lie in memory.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/warp.h"

namespace dws::cuda::kernels {

// The items of one warp: first, first + step, ... `first` is the warp's number in the launch,
// `step` the number of warps.
struct WarpShare {
  uint64_t first = 0;
  uint64_t step = 1;
};

// Item `index` of the T[] at `address`. T is plain data.
template <typename T>
DWS_KERNEL const T& ItemAt(uint64_t address, uint64_t index) {
  return At<const T>(address)[index];
}

template <typename T>
DWS_KERNEL void PutItem(uint64_t address, uint64_t index, const T& item) {
  At<T>(address)[index] = item;
}

// Calls f with a zero of the unsigned type that has `bytes` bytes. Does not call it if there is no
// such type.
template <typename F>
DWS_KERNEL void WithElementBits(uint32_t bytes, F f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return;
  }
}

}  // namespace dws::cuda::kernels
