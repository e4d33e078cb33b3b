// The warp for the kernels: one source, compiled by nvcc for the device and by the host compiler as
// a loop over 32 lanes. Only this file and lane.h distinguish the two.
//
// Rules for code that uses it:
//   1. A plain local variable is uniform: every lane has the same value.
//   2. A value that differs between lanes is a Vec. It is accessed only in lanes(f), and each lane
//      accesses only its entry.
//   3. All lanes take part in every collective. So branches and loops around collectives depend
//      only on uniform values.
//   4. A lane reads memory that another lane has written only after Sync().
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/lane.h"

namespace dws::cuda::kernels {

// One value for each lane.
template <typename T>
class Vec {
 public:
  DWS_KERNEL T& operator[](uint32_t lane) { return of_[kLanesHere == 1 ? 0 : lane]; }
  DWS_KERNEL const T& operator[](uint32_t lane) const { return of_[kLanesHere == 1 ? 0 : lane]; }

 private:
  T of_[kLanesHere] = {};
};

// 32 lanes that run in step. It has no state. Lifecycle: as long as its kernel runs.
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

  // Makes everything that lanes have written so far visible to all lanes.
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

  // The value of lane `from` (below 32), in all lanes.
  template <typename T>
  DWS_KERNEL T Broadcast(const Vec<T>& values, uint32_t from) const {
#if defined(__CUDACC__)
    return __shfl_sync(kAll, values[0], static_cast<int>(from));
#else
    return values[from];
#endif
  }

  // The sum of all lanes' values. Uniform.
  DWS_KERNEL uint32_t Total(const Vec<uint32_t>& values) const {
#if defined(__CUDACC__)
    return __reduce_add_sync(kAll, values[0]);
#else
    uint32_t total = 0;
    lanes([&](uint32_t lane) { total += values[lane]; });
    return total;
#endif
  }

  // The largest of all lanes' values. Uniform.
  DWS_KERNEL uint32_t Largest(const Vec<uint32_t>& values) const {
#if defined(__CUDACC__)
    return __reduce_max_sync(kAll, values[0]);
#else
    uint32_t largest = 0;
    lanes([&](uint32_t lane) { largest = values[lane] > largest ? values[lane] : largest; });
    return largest;
#endif
  }

  // Returns, for each lane, the sum of its value and those of all lanes before it.
  DWS_KERNEL Vec<uint32_t> RunningTotal(Vec<uint32_t> values) const {
#if defined(__CUDACC__)
    DWS_UNROLL
    for (uint32_t by = 1; by < kLanes; by *= 2) {
      // Adds the value of the lane below only if there is one, which the shuffle itself reports.
      asm volatile(
          "{ .reg .pred valid; .reg .b32 below;\n\t"
          "shfl.sync.up.b32 below|valid, %0, %1, 0, 0xffffffff;\n\t"
          "@valid add.u32 %0, %0, below; }"
          : "+r"(values[0])
          : "r"(by));
    }
#else
    lanes([&](uint32_t lane) {
      if (lane > 0) values[lane] += values[lane - 1];
    });
#endif
    return values;
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

  // Returns, for each lane, the value of the lane `by` (1 to 31) above or below it, or its own
  // value if there is no such lane.
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
