// Four BF16 elements at a time: what a lane loads, encodes and stores. The arithmetic is that of
// the host, compiled a second time.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/quantise/quantise_args.h"
#include "common/memory/cuda/kernels/warp.h"

#if defined(__CUDACC__)
#define DWS_QUANTISE_CODE __device__ __forceinline__
#else
#define DWS_QUANTISE_CODE static inline
#endif
#include "common/quantise/kernels/arithmetic.h"
#include "common/quantise/kernels/scales.h"

namespace dws::cuda::kernels {

using quantise::Rule;
using quantise::Tiles;

inline constexpr uint32_t kQuad = 4;

// Up to four elements, with zeros after them.
DWS_KERNEL uint64_t LoadQuad(uint64_t address, uint32_t count) {
  if (count == kQuad && address % 8 == 0) return Load<uint64_t>(address);
  uint64_t word = 0;
  DWS_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    if (i < count) word |= uint64_t{Load<uint16_t>(address + i * 2)} << (i * 16);
  }
  return word;
}

DWS_KERNEL uint32_t Larger(uint32_t a, uint32_t b) { return a < b ? b : a; }

// The largest magnitude of four elements.
DWS_KERNEL uint32_t AmaxOf(uint64_t quad) {
  uint32_t most = 0;
  DWS_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    most = Larger(most, static_cast<uint32_t>(quad >> (i * 16)) & 0x7FFF);
  }
  return most;
}

template <Rule kRule>
inline constexpr uint32_t kCodeBits = quantise::CodesOf(kRule) == quantise::Codes::kE4m3 ? 8 : 4;

// The codes of four elements, as they lie in memory.
template <Rule kRule>
DWS_KERNEL uint32_t EncodeQuad(uint64_t quad, float operand) {
  uint32_t codes = 0;
  DWS_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    const float value = quantise::OneLane::FromBits(static_cast<uint32_t>(quad >> (i * 16)) << 16);
    codes |= quantise::EncodeValue<kRule>(value, operand) << (i * kCodeBits<kRule>);
  }
  return codes;
}

// The codes of `count` of four elements, the first of which is element `number` of the slice. Codes
// of half a byte come in fours.
template <Rule kRule>
DWS_KERNEL void StoreQuad(const QuantiseArgs& args, uint64_t number, uint32_t codes,
                          uint32_t count) {
  if constexpr (kCodeBits<kRule> == 4) {
    Store<uint16_t>(args.codes + number / 2, static_cast<uint16_t>(codes));
  } else {
    const uint64_t address = args.codes + number;
    if (count == kQuad && address % 4 == 0) return Store<uint32_t>(address, codes);
    DWS_UNROLL
    for (uint32_t i = 0; i < kQuad; ++i) {
      if (i < count) Store<uint8_t>(address + i, static_cast<uint8_t>(codes >> (i * 8)));
    }
  }
}

// What a tile leaves beside its codes.
template <Rule kRule>
DWS_KERNEL void StoreTile(const QuantiseArgs& args, uint64_t tile, uint32_t amax, uint32_t scale) {
  constexpr uint32_t kBytes = quantise::ScaleBytes(kRule);
  const uint64_t address = args.scales + tile * kBytes;
  if constexpr (kBytes == 4) Store<uint32_t>(address, scale);
  if constexpr (kBytes == 2) Store<uint16_t>(address, static_cast<uint16_t>(scale));
  if constexpr (kBytes == 1) Store<uint8_t>(address, static_cast<uint8_t>(scale));
  if (args.amax != 0) Store<uint16_t>(args.amax + tile * 2, static_cast<uint16_t>(amax));
}

DWS_KERNEL uint32_t TensorAmax(const QuantiseArgs& args, uint64_t matrix) {
  return Load<uint16_t>(args.tensor_amax + matrix * 2);
}

}  // namespace dws::cuda::kernels
