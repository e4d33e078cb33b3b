// Converts a quotient to a code (RECIPES.md, "Codes"), for any number of lanes: `Lanes` is OneLane
// or a vector's struct with the same members. Lanes must not hold a NaN here; EncodeAny accepts
// every value.
//
// A kernel's file defines DWS_QUANTISE_CODE with the attributes of its instruction set before it
// includes this header. So each file has its own copy of these functions: if the linker shared one,
// it could be code for another processor.
#pragma once

#include <cstdint>

#include "common/quantise/kernels/one_lane.h"
#include "common/quantise/kernels/rule.h"

#if !defined(DWS_QUANTISE_CODE)
#error "define DWS_QUANTISE_CODE: attributes of the functions in this header"
#endif

namespace dws::quantise {

inline constexpr uint32_t kInfinityBits = 0x7F800000;
inline constexpr uint32_t kMagnitudeBits = 0x7FFFFFFF;
inline constexpr uint32_t kNanBits = 0x7FC00000;  // the only NaN that recipes write
inline constexpr uint32_t kTwoTo23 = 0x4B000000;  // the float 2^23: adding it leaves an integer

// The small float formats that codes have.
struct E4m3 {
  static constexpr uint32_t kMantissa = 3;
  static constexpr uint32_t kBias = 7;
  static constexpr uint32_t kLargest = 0x43E00000;  // the float 448
  static constexpr uint32_t kSignShift = 24;        // from the float's sign to the code's
  static constexpr uint32_t kSign = 0x80;
};
struct E2m1 {
  static constexpr uint32_t kMantissa = 1;
  static constexpr uint32_t kBias = 1;
  static constexpr uint32_t kLargest = 0x40C00000;  // the float 6
  static constexpr uint32_t kSignShift = 28;
  static constexpr uint32_t kSign = 0x8;
};

// Adds what makes it a rounding to the nearest, a tie to the even one, to drop the last kDropped
// bits.
template <typename Lanes, uint32_t kDropped>
DWS_QUANTISE_CODE typename Lanes::Words AddHalf(typename Lanes::Words bits) {
  const auto odd = Lanes::And(Lanes::template Right<kDropped>(bits), Lanes::Same(1u));
  return Lanes::Plus(Lanes::Plus(bits, Lanes::Same((1u << (kDropped - 1)) - 1)), odd);
}

// Returns the code of a magnitude: clamped to the largest, rounded to the nearest code, a tie to
// the even one.
template <typename Lanes, typename Format>
DWS_QUANTISE_CODE typename Lanes::Words EncodeMagnitude(typename Lanes::Words magnitude) {
  using Words = typename Lanes::Words;
  constexpr uint32_t kDropped = 23 - Format::kMantissa;
  constexpr uint32_t kNormal = (128 - Format::kBias) << 23;  // the smallest normal number
  // Codes below kNormal are whole steps: the sum with this float has the number of steps in its
  // lowest bits.
  constexpr uint32_t kMagic = kTwoTo23 - ((Format::kBias + Format::kMantissa - 1) << 23);
  magnitude = Lanes::Least(magnitude, Lanes::Same(Format::kLargest));
  const Words rounded = AddHalf<Lanes, kDropped>(magnitude);
  const Words normal = Lanes::Minus(Lanes::template Right<kDropped>(rounded),
                                    Lanes::Same((127 - Format::kBias) << Format::kMantissa));
  const Words steps = Lanes::Minus(
      Lanes::Bits(Lanes::Add(Lanes::FromBits(magnitude), Lanes::FromBits(Lanes::Same(kMagic)))),
      Lanes::Same(kMagic));
  return Lanes::SelectLess(magnitude, Lanes::Same(kNormal), steps, normal);
}

// The code of an E2M1 magnitude: as EncodeMagnitude, but a tie to the larger or to the smaller
// magnitude.
template <typename Lanes, Codes kCodes>
DWS_QUANTISE_CODE typename Lanes::Words EncodeUneven(typename Lanes::Words magnitude) {
  using Words = typename Lanes::Words;
  constexpr uint32_t kDropped = 23 - E2m1::kMantissa;
  constexpr uint32_t kOne = 127U << 23;
  constexpr uint32_t kTie = kCodes == Codes::kE2m1Up ? 0 : 1;  // the first bits above it round up
  magnitude = Lanes::Least(magnitude, Lanes::Same(E2m1::kLargest));
  const Words rounded = Lanes::Plus(magnitude, Lanes::Same((1U << (kDropped - 1)) - kTie));
  const Words normal = Lanes::Minus(Lanes::template Right<kDropped>(rounded),
                                    Lanes::Same((127 - E2m1::kBias) << E2m1::kMantissa));
  const Words half_or_one =
      Lanes::SelectLess(magnitude, Lanes::Same(0x3F400000U + kTie), Lanes::Same(1U),  // 0.75
                        Lanes::Same(2U));
  const Words small = Lanes::SelectLess(magnitude, Lanes::Same(0x3E800000U + kTie),  // 0.25
                                        Lanes::Same(0U), half_or_one);
  return Lanes::SelectLess(magnitude, Lanes::Same(kOne), small, normal);
}

// The codes of quotients that are no NaN.
template <typename Lanes, Codes kCodes>
DWS_QUANTISE_CODE typename Lanes::Words Encode(typename Lanes::Floats quotient) {
  using Words = typename Lanes::Words;
  const Words bits = Lanes::Bits(quotient);
  const Words magnitude = Lanes::And(bits, Lanes::Same(kMagnitudeBits));
  if constexpr (kCodes == Codes::kE4m3) {
    const Words sign =
        Lanes::And(Lanes::template Right<E4m3::kSignShift>(bits), Lanes::Same(E4m3::kSign));
    return Lanes::Or(EncodeMagnitude<Lanes, E4m3>(magnitude), sign);
  } else if constexpr (kCodes == Codes::kE2m1) {
    // A quotient of -0 has the code of +0, one below 0 that rounds to 0 has that of -0.
    const Words sign =
        Lanes::And(Lanes::template Right<E2m1::kSignShift>(bits), Lanes::Same(E2m1::kSign));
    return Lanes::Or(EncodeMagnitude<Lanes, E2m1>(magnitude),
                     Lanes::SelectLess(magnitude, Lanes::Same(1u), Lanes::Same(0u), sign));
  } else if constexpr (kCodes == Codes::kE2m1Up || kCodes == Codes::kE2m1Down) {
    const Words sign =
        Lanes::And(Lanes::template Right<E2m1::kSignShift>(bits), Lanes::Same(E2m1::kSign));
    const Words code = EncodeUneven<Lanes, kCodes>(magnitude);
    if constexpr (kCodes == Codes::kE2m1Up) return Lanes::Or(code, sign);
    // Both zeros have the code of -0.
    return Lanes::Or(code,
                     Lanes::SelectLess(magnitude, Lanes::Same(1u), Lanes::Same(E2m1::kSign), sign));
  } else {
    const Words least = Lanes::Least(magnitude, Lanes::Same(0x41000000u));  // the float 8
    const Words rounded = Lanes::Minus(
        Lanes::Bits(Lanes::Add(Lanes::FromBits(least), Lanes::FromBits(Lanes::Same(kTwoTo23)))),
        Lanes::Same(kTwoTo23));
    const Words mask = Lanes::SignMask(bits);
    const Words number = Lanes::Minus(Lanes::Xor(rounded, mask), mask);
    return Lanes::Least(Lanes::Plus(number, Lanes::Same(8u)), Lanes::Same(15u));
  }
}

// The value of the E4M3 code of a magnitude.
template <typename Lanes>
DWS_QUANTISE_CODE typename Lanes::Floats RoundToE4m3(typename Lanes::Words magnitude) {
  using Words = typename Lanes::Words;
  constexpr uint32_t kDropped = 23 - E4m3::kMantissa;
  constexpr uint32_t kNormal = (128 - E4m3::kBias) << 23;
  constexpr float kMagic = 0x1p14F;  // its last bit is the smallest step
  magnitude = Lanes::Least(magnitude, Lanes::Same(E4m3::kLargest));
  const Words rounded = AddHalf<Lanes, kDropped>(magnitude);
  const Words normal = Lanes::And(rounded, Lanes::Same(~((1u << kDropped) - 1)));
  const Words steps = Lanes::Bits(Lanes::Add(
      Lanes::Add(Lanes::FromBits(magnitude), Lanes::Same(kMagic)), Lanes::Same(-kMagic)));
  return Lanes::FromBits(Lanes::SelectLess(magnitude, Lanes::Same(kNormal), steps, normal));
}

// Rounds to the nearest BF16, a tie to the even one. `value` must not be a NaN.
template <typename Lanes>
DWS_QUANTISE_CODE typename Lanes::Floats RoundToBf16(typename Lanes::Floats value) {
  return Lanes::FromBits(
      Lanes::And(AddHalf<Lanes, 16>(Lanes::Bits(value)), Lanes::Same(0xFFFF0000u)));
}

DWS_QUANTISE_CODE bool IsNan(float value) {
  return (OneLane::Bits(value) & kMagnitudeBits) > kInfinityBits;
}

DWS_QUANTISE_CODE float ToBf16(float value) {
  return IsNan(value) ? OneLane::FromBits(kNanBits) : RoundToBf16<OneLane>(value);
}

// The code of any quotient: a NaN has the code of NaN, or of 0 where the format has none.
template <Codes kCodes>
DWS_QUANTISE_CODE uint32_t EncodeAny(float quotient) {
  if (IsNan(quotient)) return kCodes == Codes::kE4m3 ? 0x7F : kCodes == Codes::kInt4 ? 8 : 0;
  return Encode<OneLane, kCodes>(quotient);
}

// Encodes any element with any operand. This is the definition of a code.
template <Rule kRule>
DWS_QUANTISE_CODE uint32_t EncodeValue(float element, float operand) {
  constexpr Step kStep = StepOf(kRule);
  float quotient = kStep == Step::kMultiply ? OneLane::Multiply(element, operand)
                                            : OneLane::Divide(element, operand);
  if constexpr (kStep == Step::kDivideBf16) quotient = ToBf16(quotient);
  return EncodeAny<CodesOf(kRule)>(quotient);
}

// The value of an E4M3 code.
DWS_QUANTISE_CODE float DecodeE4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7F;
  if (magnitude == 0x7F) return OneLane::FromBits(kNanBits);
  if (magnitude >= 8) return OneLane::FromBits((magnitude + ((127 - 7) << 3)) << 20);
  // A subnormal: so many steps of 2^-9.
  return OneLane::Multiply(static_cast<float>(magnitude), OneLane::FromBits((127 - 9) << 23));
}

}  // namespace dws::quantise
