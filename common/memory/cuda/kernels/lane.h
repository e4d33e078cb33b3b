// The operations of a single lane, on the device and on the host: bits, and memory by address.
//
// Global memory (the device's, or mapped from the host) is accessed by address, through the
// functions here. An address that is not a multiple of the size traps on both. A warp's scratch
// memory is accessed by reference.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DWS_KERNEL __device__ __forceinline__
// for a lambda that would otherwise be too large to be inlined
#define DWS_INLINE __attribute__((always_inline))
#define DWS_UNROLL _Pragma("unroll")
#define DWS_NO_UNROLL _Pragma("unroll 1")  // for rarely executed loops
#else
#include <bit>
#include <cstring>
#define DWS_KERNEL inline
#define DWS_INLINE
#define DWS_UNROLL
#define DWS_NO_UNROLL
#endif

namespace dws::cuda::kernels {

// Two words that are loaded together.
struct WordPair {
  uint64_t low = 0;
  uint64_t high = 0;
};

#if defined(__CUDACC__)

inline constexpr uint32_t kLanesHere = 1;  // lanes of one thread

DWS_KERNEL uint32_t PopCount(uint32_t bits) { return static_cast<uint32_t>(__popc(bits)); }
DWS_KERNEL uint32_t PopCount(uint64_t bits) { return static_cast<uint32_t>(__popcll(bits)); }
// LowestOne and HighestOne: `bits` must not be 0.
DWS_KERNEL uint32_t LowestOne(uint32_t bits) { return static_cast<uint32_t>(__ffs(bits)) - 1; }
DWS_KERNEL uint32_t HighestOne(uint32_t bits) { return 31 - static_cast<uint32_t>(__clz(bits)); }
DWS_KERNEL uint32_t BitWidth(uint64_t bits) { return 64 - static_cast<uint32_t>(__clzll(bits)); }

// 32 bits of the 64 of `high` and `low`, from bit `shift` % 32 on.
DWS_KERNEL uint32_t FunnelRight(uint32_t low, uint32_t high, uint32_t shift) {
  return __funnelshift_r(low, high, shift);
}

// A pointer to an address. It tells the compiler that this is global memory, so that it need not
// test the kind of memory at run time.
template <typename T>
DWS_KERNEL T* At(uint64_t address) {
  return static_cast<T*>(__cvta_global_to_generic(address));
}
template <typename T>
DWS_KERNEL T Load(uint64_t address) {
  return *At<const T>(address);
}
template <>
DWS_KERNEL WordPair Load<WordPair>(uint64_t address) {
  const ulonglong2 pair = *At<const ulonglong2>(address);
  return {pair.x, pair.y};
}
template <typename T>
DWS_KERNEL void Store(uint64_t address, T value) {
  *At<T>(address) = value;
}
// Prefetches the cache line at an address that will be loaded later.
DWS_KERNEL void Fetch(uint64_t address) {
  asm volatile("prefetch.global.L2 [%0];" : : "l"(address));
}
// Stops the compiler from loading the word a second time.
DWS_KERNEL void LoadedForGood(uint64_t& word) { asm volatile("" : "+l"(word)); }
// Returns the old value.
DWS_KERNEL uint64_t AtomicAdd(uint64_t address, uint64_t value) {
  return atomicAdd(At<unsigned long long>(address), value);
}
DWS_KERNEL void AtomicAdd32(uint64_t address, uint32_t value) {
  atomicAdd(At<unsigned int>(address), value);
}
// For scratch memory: other lanes may change the word in the same way at the same time.
DWS_KERNEL void SetBits(uint32_t& word, uint32_t bits) { atomicOr(&word, bits); }
DWS_KERNEL void AddTo(uint32_t& word, uint32_t value) { atomicAdd(&word, value); }

#else

inline constexpr uint32_t kLanesHere = 32;

inline uint32_t PopCount(uint32_t bits) { return static_cast<uint32_t>(std::popcount(bits)); }
inline uint32_t PopCount(uint64_t bits) { return static_cast<uint32_t>(std::popcount(bits)); }
inline uint32_t LowestOne(uint32_t bits) { return static_cast<uint32_t>(std::countr_zero(bits)); }
inline uint32_t HighestOne(uint32_t bits) {
  return static_cast<uint32_t>(std::bit_width(bits)) - 1;
}
inline uint32_t BitWidth(uint64_t bits) { return static_cast<uint32_t>(std::bit_width(bits)); }
inline uint32_t FunnelRight(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift % 32));
}

template <typename T>
inline T* At(uint64_t address) {
  return reinterpret_cast<T*>(address);
}
template <typename T>
inline T Load(uint64_t address) {
  if (address % sizeof(T) != 0) __builtin_trap();
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
  return value;
}
template <typename T>
inline void Store(uint64_t address, T value) {
  if (address % sizeof(T) != 0) __builtin_trap();
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
}
inline void Fetch(uint64_t /*address*/) {}
inline void LoadedForGood(uint64_t& word) { asm volatile("" : "+r"(word)); }
inline uint64_t AtomicAdd(uint64_t address, uint64_t value) {
  if (address % sizeof(value) != 0) __builtin_trap();
  return __atomic_fetch_add(reinterpret_cast<uint64_t*>(address), value, __ATOMIC_RELAXED);
}
inline void AtomicAdd32(uint64_t address, uint32_t value) {
  if (address % sizeof(value) != 0) __builtin_trap();
  __atomic_fetch_add(reinterpret_cast<uint32_t*>(address), value, __ATOMIC_RELAXED);
}
inline void SetBits(uint32_t& word, uint32_t bits) { word |= bits; }
inline void AddTo(uint32_t& word, uint32_t value) { word += value; }

#endif

}  // namespace dws::cuda::kernels
