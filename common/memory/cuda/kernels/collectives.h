// Sums and unions over the lanes of a warp, made of warp.h's collectives.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/warp.h"

namespace dws::cuda::kernels {

// The lowest `width` bits set; width at most 64.
DWS_KERNEL constexpr uint64_t LowBits(uint32_t width) {
  return width >= 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
}

// The bits of a ballot that belong to lanes before `lane`.
DWS_KERNEL uint32_t Before(uint32_t ballot, uint32_t lane) {
  return ballot & ((uint32_t{1} << lane) - 1);
}

// Returns, for each lane, the sum of its value and those of all lanes before it.
DWS_KERNEL Vec<uint32_t> RunningSum(const Warp& warp, const Vec<uint32_t>& values) {
  return warp.RunningTotal(values);
}
template <typename T>
DWS_KERNEL Vec<T> RunningSum(const Warp& warp, Vec<T> values) {
  DWS_UNROLL
  for (uint32_t by = 1; by < Warp::kLanes; by *= 2) {
    const Vec<T> below = warp.FromBelow(values, by);
    warp.lanes([&](uint32_t lane) {
      if (lane >= by) values[lane] += below[lane];
    });
  }
  return values;
}

// The sum over all lanes. Uniform.
DWS_KERNEL uint32_t Sum(const Warp& warp, const Vec<uint32_t>& values) {
  return warp.Total(values);
}
template <typename T>
DWS_KERNEL T Sum(const Warp& warp, Vec<T> values) {
  DWS_UNROLL
  for (uint32_t by = Warp::kLanes / 2; by != 0; by /= 2) {
    const Vec<T> above = warp.FromAbove(values, by);
    // Lanes without a lane above add their own value: their sums are never read.
    warp.lanes([&](uint32_t lane) { values[lane] += above[lane]; });
  }
  return warp.Broadcast(values, 0);
}

// The bitwise or over all lanes. Uniform.
template <typename T>
DWS_KERNEL T Union(const Warp& warp, Vec<T> values) {
  DWS_UNROLL
  for (uint32_t by = Warp::kLanes / 2; by != 0; by /= 2) {
    const Vec<T> above = warp.FromAbove(values, by);
    warp.lanes([&](uint32_t lane) { values[lane] |= above[lane]; });
  }
  return warp.Broadcast(values, 0);
}

}  // namespace dws::cuda::kernels
