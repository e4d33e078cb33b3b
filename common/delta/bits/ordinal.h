// Ordinals: the bijection from an element's bits to integers in numeric order (FORMAT.md,
// "Ordinals"). Steps are differences of ordinals modulo 2^w. For floats ord(x) = x xor ((x >>
// (w-1)) & (2^(w-1) - 1)) with an arithmetic shift; for integers ord(x) = x. It is its own inverse.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/model/tensor_spec.h"

namespace dws {

// `Bits` is the unsigned integer of the element's width.
template <typename Bits>
constexpr Bits ToOrdinal(Bits bits, Mapping mapping) {
  if (mapping == Mapping::kInteger) return bits;
  using Signed = std::make_signed_t<Bits>;
  constexpr int kShift = sizeof(Bits) * 8 - 1;
  constexpr Bits kMask = static_cast<Bits>(~(Bits{1} << kShift));
  const Bits sign = static_cast<Bits>(static_cast<Signed>(bits) >> kShift);
  return static_cast<Bits>(bits ^ (sign & kMask));
}

template <typename Bits>
constexpr Bits FromOrdinal(Bits ordinal, Mapping mapping) {
  return ToOrdinal(ordinal, mapping);
}

}  // namespace dws
