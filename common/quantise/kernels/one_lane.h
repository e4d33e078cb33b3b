// The operations of one lane: what the arithmetic of the recipes is written in (arithmetic.h,
// scales.h). The vector kernels have a struct with the same members for 8 and for 16 lanes, and
// compute with it what this one defines; GPUs compute with this one.
//
// Floats are IEEE binary32, rounded to nearest even, subnormals kept: the caller sees to the
// processor's mode, and this package is compiled without contraction to fused operations.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DWS_LANE __device__ __forceinline__
#else
#include <bit>
#include <cstddef>
#include <cstring>
#define DWS_LANE inline
#endif

namespace dws::quantise {

struct OneLane {
  static constexpr uint32_t kWidth = 1;
  using Floats = float;
  using Words = uint32_t;

#if defined(__CUDACC__)
  static DWS_LANE Words Bits(Floats value) { return __float_as_uint(value); }
  static DWS_LANE Floats FromBits(Words bits) { return __uint_as_float(bits); }
  static DWS_LANE Floats Add(Floats a, Floats b) { return __fadd_rn(a, b); }
  static DWS_LANE Floats Multiply(Floats a, Floats b) { return __fmul_rn(a, b); }
  static DWS_LANE Floats Divide(Floats a, Floats b) { return __fdiv_rn(a, b); }
#else
  static DWS_LANE Words Bits(Floats value) { return std::bit_cast<uint32_t>(value); }
  static DWS_LANE Floats FromBits(Words bits) { return std::bit_cast<float>(bits); }
  static DWS_LANE Floats Add(Floats a, Floats b) { return a + b; }
  static DWS_LANE Floats Multiply(Floats a, Floats b) { return a * b; }
  static DWS_LANE Floats Divide(Floats a, Floats b) { return a / b; }
  // BF16 elements, widened exactly.
  static DWS_LANE Floats Load(const std::byte* elements) {
    uint16_t bits;
    std::memcpy(&bits, elements, sizeof(bits));
    return FromBits(uint32_t{bits} << 16);
  }
  static DWS_LANE void StoreBytes(Words codes, std::byte* to) {
    *to = static_cast<std::byte>(codes);
  }
  // The largest magnitude of BF16 elements, as bits without the sign: above 0x7F80 if there is a
  // NaN.
  static DWS_LANE uint32_t AbsMax(const std::byte* elements, uint64_t count) {
    uint32_t most = 0;
    for (uint64_t i = 0; i < count; ++i) {
      uint16_t bits;
      std::memcpy(&bits, elements + i * 2, sizeof(bits));
      const uint32_t magnitude = bits & 0x7FFFU;
      most = most < magnitude ? magnitude : most;
    }
    return most;
  }
#endif
  static DWS_LANE Floats Same(float value) { return value; }
  static DWS_LANE Words Same(uint32_t value) { return value; }
  static DWS_LANE Words And(Words a, Words b) { return a & b; }
  static DWS_LANE Words Or(Words a, Words b) { return a | b; }
  static DWS_LANE Words Xor(Words a, Words b) { return a ^ b; }
  static DWS_LANE Words Plus(Words a, Words b) { return a + b; }
  static DWS_LANE Words Minus(Words a, Words b) { return a - b; }
  template <uint32_t kBits>
  static DWS_LANE Words Right(Words a) {
    return a >> kBits;
  }
  // All ones if the highest bit is set, else 0.
  static DWS_LANE Words SignMask(Words a) { return 0 - (a >> 31); }
  // For numbers below 2^31.
  static DWS_LANE Words Least(Words a, Words b) { return a < b ? a : b; }
  static DWS_LANE Words SelectLess(Words a, Words b, Words yes, Words no) {
    return a < b ? yes : no;
  }
};

}  // namespace dws::quantise
