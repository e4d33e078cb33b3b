// Gradients as tests make and compare them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/memory/gradients/accumulators.h"

namespace dws::gradients {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

inline constexpr uint64_t kPlenty = uint64_t{1} << 32;

// The BF16 number of these bits.
inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
inline uint16_t ToBf16(float value) {  // cut off, not rounded
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  const ByteSpan bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}
template <typename T>
std::vector<T> ValuesOf(ByteSpan bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// BF16 numbers as a backward pass leaves them: about normal, the width different for each run of
// elements, some zeros.
inline std::vector<uint16_t> RealisticBf16(Random& random, size_t count) {
  std::vector<uint16_t> values(count);
  float width = 1e-3F;
  for (size_t i = 0; i < count; ++i) {
    if (i % 1024 == 0) width = std::ldexp(1.0F, -static_cast<int>(random() % 8) - 6);
    std::normal_distribution<float> normal(0, width);
    values[i] = random() % 50 == 0 ? 0 : ToBf16(normal(random));
  }
  return values;
}

inline std::vector<float> RealisticF32(Random& random, size_t count) {
  std::normal_distribution<float> normal(0, 1e-3F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

inline GradientPiece PieceOf(size_t unit, DType dtype, const Bytes& bytes) {
  return {.unit = unit, .blocks = {}, .dtype = dtype, .bytes = bytes};
}

inline Accumulators Create(std::vector<GradientUnit> units, bool exact) {
  Result<Accumulators> made =
      Accumulators::Create(std::move(units), {.exact = exact, .bytes_max = kPlenty});
  DWS_CHECK(made.ok());
  return *std::move(made);
}

inline std::vector<float> Gradient(const Accumulators& sums, size_t unit) {
  return ValuesOf<float>(sums.Gradient(unit));
}

}  // namespace dws::gradients
