// The warp as the kernels see it: one source, compiled by nvcc for the device and by the host
// compiler as a loop over 32 lanes. Only this file and lane.h know which of the two it is.
//
// Code over it has rules. A plain local is uniform: every lane has the same value. What differs
// from lane to lane is a Vec, touched in lanes(f) only, by the lane whose it is. Collectives take
// part with all lanes, so branches and loops around them depend on uniform values alone. Memory
// that lanes have written is read by other lanes after Sync().
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/lane.h"

namespace dws::cuda::kernels {

// A value of each lane.
template <typename T>
class Vec {
 public:
  DWS_KERNEL T& operator[](uint32_t lane) { return of_[kLanesHere == 1 ? 0 : lane]; }
  DWS_KERNEL const T& operator[](uint32_t lane) const { return of_[kLanesHere == 1 ? 0 : lane]; }

 private:
  T of_[kLanesHere] = {};
};

// 32 lanes in step. Lifecycle: as long as its kernel runs. No state: what it does is in the name.
class Warp {
 public:
  static constexpr uint32_t kLanes = 32;

  // Calls f(lane) for each lane.
  template <typename F>
  DWS_KERNEL void lanes(F f) const {
#if defined(__CUDACC__)
    f(threadIdx.x % kLanes);
#else
    for (uint32_t lane = 0; lane < kLanes; ++lane) f(lane);
#endif
  }

  // Makes what each lane has written so far visible to all.
  DWS_KERNEL void Sync() const {
#if defined(__CUDACC__)
    __syncwarp();
#endif
  }

  // Bit i: lane i's value is not 0.
  template <typename T>
  DWS_KERNEL uint32_t Ballot(const Vec<T>& values) const {
#if defined(__CUDACC__)
    return __ballot_sync(kAll, values[0] != T{});
#else
    uint32_t bits = 0;
    lanes([&](uint32_t lane) { bits |= uint32_t{values[lane] != T{}} << lane; });
    return bits;
#endif
  }

  // The value of lane `from` (below 32), for all.
  template <typename T>
  DWS_KERNEL T Broadcast(const Vec<T>& values, uint32_t from) const {
#if defined(__CUDACC__)
    return __shfl_sync(kAll, values[0], static_cast<int>(from));
#else
    return values[from];
#endif
  }

  // For each lane the value of lane from[lane] % 32.
  template <typename T>
  DWS_KERNEL Vec<T> Shuffle(const Vec<T>& values, const Vec<uint32_t>& from) const {
    Vec<T> out;
#if defined(__CUDACC__)
    out[0] = __shfl_sync(kAll, values[0], static_cast<int>(from[0] % kLanes));
#else
    lanes([&](uint32_t lane) { out[lane] = values[from[lane] % kLanes]; });
#endif
    return out;
  }

  // The value of the lane `by` (1 to 31) above or below; where there is none, the lane's own.
  template <typename T>
  DWS_KERNEL Vec<T> FromAbove(const Vec<T>& values, uint32_t by) const {
    Vec<T> out;
#if defined(__CUDACC__)
    out[0] = __shfl_down_sync(kAll, values[0], by);
#else
    lanes([&](uint32_t lane) { out[lane] = values[lane + by < kLanes ? lane + by : lane]; });
#endif
    return out;
  }
  template <typename T>
  DWS_KERNEL Vec<T> FromBelow(const Vec<T>& values, uint32_t by) const {
    Vec<T> out;
#if defined(__CUDACC__)
    out[0] = __shfl_up_sync(kAll, values[0], by);
#else
    lanes([&](uint32_t lane) { out[lane] = values[lane >= by ? lane - by : lane]; });
#endif
    return out;
  }

 private:
  static constexpr uint32_t kAll = 0xFFFFFFFF;
};

}  // namespace dws::cuda::kernels
