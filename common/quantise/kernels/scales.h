// From a tile's largest magnitude to its scale, and to what its elements are multiplied with or
// divided by (RECIPES.md, one section a rule). Scalar, the same for all kernels.
#pragma once

#include <cstdint>

#include "common/quantise/kernels/arithmetic.h"
#include "common/quantise/kernels/rule.h"

namespace dws::quantise {

struct Scale {
  float operand = 0;    // of the step
  uint32_t stored = 0;  // bits of the scale in its dtype
};

// The scale of a matrix, for rules that have one.
struct TensorScale {
  float value = 0;
  uint32_t stored = 0;
};

// A float with the bits of a BF16; every NaN becomes the canonical NaN.
DWS_QUANTISE_CODE float FromAmax(uint32_t amax) {
  return OneLane::FromBits(amax > kInfinityBits >> 16 ? kNanBits : amax << 16);
}
// Returns the larger one; a NaN stays a NaN.
DWS_QUANTISE_CODE float AtLeast(float value, float least) { return value < least ? least : value; }
DWS_QUANTISE_CODE float AtMost(float value, float most) { return value > most ? most : value; }

DWS_QUANTISE_CODE Scale StoreFloat(float scale, float operand) {
  return {.operand = operand, .stored = IsNan(scale) ? kNanBits : OneLane::Bits(scale)};
}
DWS_QUANTISE_CODE Scale StoreBf16(float scale, float operand) {
  return {.operand = operand, .stored = OneLane::Bits(ToBf16(scale)) >> 16};
}

// amax / `divisor` in BF16; where that is 0, 2^-7.
DWS_QUANTISE_CODE Scale CompressedScale(float amax, float divisor) {
  const float scale = ToBf16(OneLane::Divide(amax, divisor));
  return StoreBf16(scale == 0 ? 0x1p-7F : scale, scale == 0 ? 0x1p-7F : scale);
}

// The multiplier 2^(127 - exponent); NaN for the exponent 255.
DWS_QUANTISE_CODE Scale E8m0Scale(uint32_t exponent) {
  const uint32_t bits = exponent == 0xFF   ? kNanBits
                        : exponent == 0xFE ? 0x00400000
                                           : (254 - exponent) << 23;
  return {.operand = OneLane::FromBits(bits), .stored = exponent};
}

DWS_QUANTISE_CODE uint32_t MxExponent(Rule rule, float amax) {
  uint32_t bits = OneLane::Bits(amax);
  if (rule == Rule::kMxRceil) {
    bits = OneLane::Bits(OneLane::Multiply(amax, 1.0F / 448.0F));
  } else if (rule == Rule::kMxEven) {
    bits += 1U << 19;
  } else if (rule == Rule::kMxCompressed) {
    bits += 1U << 21;
  }
  const uint32_t exponent = bits >> 23;
  if (bits >= kInfinityBits) return 0xFF;
  const uint32_t mantissa = bits & 0x7FFFFF;
  if (rule == Rule::kMxRceil) return exponent + (mantissa > (exponent == 0 ? 0x400000 : 0) ? 1 : 0);
  return exponent < 8 ? 0 : exponent - 8;
}

// The exponent of the power of two at or above amax / 6.
DWS_QUANTISE_CODE uint32_t Mxfp4Exponent(Rule rule, float amax) {
  const uint32_t bits = OneLane::Bits(OneLane::Divide(amax, 6));
  if (bits >= kInfinityBits) return 0xFF;
  const uint32_t exponent = bits >> 23;
  const uint32_t mantissa = bits & 0x7FFFFF;
  // ModelOpt has 2^-127, the others have no subnormal scale but 0.
  const uint32_t exact = rule == Rule::kMxfp4Modelopt && exponent == 0 ? 0x400000 : 0;
  return exponent + (mantissa > exact ? 1 : 0);
}

DWS_QUANTISE_CODE float PowerOfTwoAbove(float scale) {
  const uint32_t bits = OneLane::Bits(scale) & kMagnitudeBits;
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0 ? 1 : 0);
  return OneLane::FromBits((exponent < 1 ? 1 : exponent > 254 ? 254 : exponent) << 23);
}

// The scale of a matrix with this amax (BF16 bits without the sign).
template <Rule kRule>
DWS_QUANTISE_CODE TensorScale MakeTensorScale(uint32_t amax_bits) {
  const float amax = FromAmax(amax_bits);
  if constexpr (kRule == Rule::kVllmTensor) {
    const Scale scale = StoreFloat(OneLane::Divide(amax, 448), 0);
    return {.value = OneLane::FromBits(scale.stored), .stored = scale.stored};
  } else if constexpr (kRule == Rule::kCompressedWhole) {
    const Scale scale = CompressedScale(amax, 448);
    return {.value = scale.operand, .stored = scale.stored};
  } else if constexpr (kRule == Rule::kNvfp4Modelopt) {
    const Scale scale = StoreFloat(OneLane::Divide(amax, 2688), 0);
    return {.value = OneLane::FromBits(scale.stored), .stored = scale.stored};
  } else if constexpr (kRule == Rule::kNvfp4Compressed) {
    const float reciprocal = ToBf16(OneLane::Divide(1, AtLeast(amax, 0x1p-126F)));
    const float global = ToBf16(OneLane::Multiply(reciprocal, 2688));
    const bool usable = OneLane::Bits(global) < kInfinityBits;
    return {.value = usable ? global : 1, .stored = OneLane::Bits(usable ? global : 1)};
  } else {
    return {};
  }
}

// The scale of a tile with this amax, in a matrix with this scale (if the rule has one).
template <Rule kRule>
DWS_QUANTISE_CODE Scale MakeScale(uint32_t amax_bits, const TensorScale& tensor) {
  const float amax = FromAmax(amax_bits);
  if constexpr (kRule == Rule::kDeepseek || kRule == Rule::kDeepseekDivide ||
                kRule == Rule::kDeepseekUe8m0) {
    float scale = OneLane::Divide(AtLeast(amax, 1e-4F), 448);
    if constexpr (kRule == Rule::kDeepseekUe8m0) scale = PowerOfTwoAbove(scale);
    return StoreFloat(scale, StepOf(kRule) == Step::kDivide ? scale : OneLane::Divide(1, scale));
  } else if constexpr (kRule == Rule::kVllmChannel) {
    const float scale = AtLeast(OneLane::Divide(amax, 448), 1.0F / (448.0F * 512.0F));
    return StoreFloat(scale, scale);
  } else if constexpr (kRule == Rule::kCompressedRow) {
    return CompressedScale(amax, 448);
  } else if constexpr (kRule == Rule::kCompressedWhole) {
    return {.operand = tensor.value, .stored = 0};
  } else if constexpr (kRule == Rule::kVllmTensor) {
    const float reciprocal = OneLane::Divide(1, tensor.value);
    // Below 2^-128 a scale has no reciprocal; then all codes are zeros.
    return {.operand = OneLane::Bits(reciprocal) == kInfinityBits ? 0 : reciprocal, .stored = 0};
  } else if constexpr (kRule == Rule::kMxFloor || kRule == Rule::kMxEven ||
                       kRule == Rule::kMxCompressed || kRule == Rule::kMxRceil) {
    return E8m0Scale(MxExponent(kRule, amax));
  } else if constexpr (kRule == Rule::kMxfp4Triton || kRule == Rule::kMxfp4Modelopt) {
    return E8m0Scale(Mxfp4Exponent(kRule, amax));
  } else if constexpr (kRule == Rule::kInt4Amax7) {
    const float scale = AtLeast(OneLane::Multiply(amax, 1.0F / 7.0F), 1e-5F);
    return StoreBf16(scale, scale);
  } else if constexpr (kRule == Rule::kInt4Amax7_5) {
    return CompressedScale(amax, 7.5F);
  } else if constexpr (kRule == Rule::kNvfp4Modelopt) {
    const float divisor = OneLane::Multiply(6, tensor.value);
    float ratio = divisor == 0 ? 0 : OneLane::Divide(amax, divisor);
    if (ratio == 0) ratio = 1;
    const uint32_t code = EncodeAny<Codes::kE4m3>(AtMost(AtLeast(ratio, 0x1p-9F), 448));
    return {.operand = OneLane::Multiply(DecodeE4m3(code), tensor.value), .stored = code};
  } else {
    static_assert(kRule == Rule::kNvfp4Compressed);
    const float sixth = ToBf16(OneLane::Divide(amax, 6));
    uint32_t code = EncodeAny<Codes::kE4m3>(OneLane::Multiply(tensor.value, sixth));
    if (code == 0) code = 0x20;  // 0.125
    return {.operand = OneLane::Divide(DecodeE4m3(code), tensor.value), .stored = code};
  }
}

// Returns whether Nvfp4Operands can compute with the scale of a matrix: no operand overflows or
// vanishes.
DWS_QUANTISE_CODE bool IsModerate(const TensorScale& tensor) {
  return tensor.value > 0x1p-64F && tensor.value < 0x1p64F;
}

// The operands of NVFP4's tiles in one matrix, as MakeScale computes them one by one. `amax`:
// finite; `tensor`: IsModerate.
template <typename Lanes, Rule kRule>
DWS_QUANTISE_CODE typename Lanes::Floats Nvfp4Operands(typename Lanes::Floats amax,
                                                       const TensorScale& tensor) {
  using Words = typename Lanes::Words;
  if constexpr (kRule == Rule::kNvfp4Modelopt) {
    const Words ratio =
        Lanes::Bits(Lanes::Divide(amax, Lanes::Same(OneLane::Multiply(6, tensor.value))));
    constexpr uint32_t kOne = 127U << 23;
    constexpr uint32_t kLeast = (127U - 9) << 23;  // 2^-9
    const Words not_zero = Lanes::SelectLess(ratio, Lanes::Same(1U), Lanes::Same(kOne), ratio);
    const Words enough =
        Lanes::SelectLess(not_zero, Lanes::Same(kLeast), Lanes::Same(kLeast), not_zero);
    return Lanes::Multiply(RoundToE4m3<Lanes>(enough), Lanes::Same(tensor.value));
  } else {
    static_assert(kRule == Rule::kNvfp4Compressed);
    const auto sixth = RoundToBf16<Lanes>(Lanes::Divide(amax, Lanes::Same(6.0F)));
    const Words value = Lanes::Bits(
        RoundToE4m3<Lanes>(Lanes::Bits(Lanes::Multiply(Lanes::Same(tensor.value), sixth))));
    constexpr uint32_t kEighth = (127U - 3) << 23;  // 0.125
    return Lanes::Divide(
        Lanes::FromBits(Lanes::SelectLess(value, Lanes::Same(1U), Lanes::Same(kEighth), value)),
        Lanes::Same(tensor.value));
  }
}

}  // namespace dws::quantise
