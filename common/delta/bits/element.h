// From a dtype known at run time to code compiled for its element: the unsigned integer of its
// width and the mapping to ordinals. Used by the codec's innermost functions.
#pragma once

#include <cstdint>

#include "common/base/check.h"
#include "common/delta/bits/ordinal.h"
#include "common/model/tensor_spec.h"

namespace dws {

// What the codec has to know of a dtype: its width, and how values map to steps.
template <typename BitsType, Mapping kMappingValue>
struct Element {
  using Bits = BitsType;
  static constexpr Mapping kMapping = kMappingValue;
  static constexpr uint32_t kBytes = sizeof(Bits);
  static constexpr uint32_t kLanes = 8 / kBytes;  // elements of an 8-byte word

  static constexpr Bits Ordinal(Bits bits) { return ToOrdinal(bits, kMappingValue); }
  static constexpr Bits FromStep(Bits bits, Bits step) {
    return FromOrdinal(static_cast<Bits>(Ordinal(bits) + step), kMappingValue);
  }
};

// Calls `function` with an Element of `dtype`.
template <typename Function>
decltype(auto) WithElement(DType dtype, Function&& function) {
  const bool is_float = MappingOf(dtype) == Mapping::kFloat;
  switch (ElementBytes(dtype)) {
    case 1:
      return is_float ? function(Element<uint8_t, Mapping::kFloat>())
                      : function(Element<uint8_t, Mapping::kInteger>());
    case 2:
      return is_float ? function(Element<uint16_t, Mapping::kFloat>())
                      : function(Element<uint16_t, Mapping::kInteger>());
    case 4:
      return is_float ? function(Element<uint32_t, Mapping::kFloat>())
                      : function(Element<uint32_t, Mapping::kInteger>());
    default:
      break;
  }
  DWS_CHECK(ElementBytes(dtype) == 8);
  return is_float ? function(Element<uint64_t, Mapping::kFloat>())
                  : function(Element<uint64_t, Mapping::kInteger>());
}

// The magnitude byte, by which class-split classifies floats (FORMAT.md, "Mode 3"): the eight bits
// below the sign, which in a BF16 are the exponent; in an 8-bit float all seven.
template <typename Bits>
constexpr uint8_t MagnitudeByte(Bits bits) {
  if constexpr (sizeof(Bits) == 1) {
    return bits & 0x7F;
  } else {
    return static_cast<uint8_t>(bits >> (sizeof(Bits) * 8 - 9));
  }
}

// The largest magnitude byte of a float of `element_bytes` bytes.
constexpr uint8_t MagnitudeByteMax(uint32_t element_bytes) {
  return element_bytes == 1 ? 0x7F : 0xFF;
}

// The lowest `width` bits set; width at most 64.
constexpr uint64_t LowBits(uint32_t width) {
  return width >= 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
}

// A step of `element_bits` bits as a signed number.
constexpr int64_t SignedStep(uint64_t step, uint32_t element_bits) {
  const uint32_t shift = 64 - element_bits;
  return static_cast<int64_t>(step << shift) >> shift;
}

}  // namespace dws
