// Ordinals are a bijection and their own inverse, checked for every value of 8 and 16 bits, and
// follow the order of the numbers.
#include "common/delta/bits/ordinal.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "tests/common/delta/samples.h"

namespace dws {
namespace {

template <typename Bits>
void CheckAll(Mapping mapping) {
  constexpr uint32_t kCount = 1u << (sizeof(Bits) * 8);
  std::vector<bool> seen(kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    const Bits bits = static_cast<Bits>(i);
    const Bits ordinal = ToOrdinal(bits, mapping);
    REQUIRE(FromOrdinal(ordinal, mapping) == bits);
    REQUIRE_FALSE(seen[ordinal]);
    seen[ordinal] = true;
  }
}

}  // namespace

TEST_CASE("every 8- and 16-bit value has an ordinal of its own that maps back to it", "[delta]") {
  for (const Mapping mapping : {Mapping::kInteger, Mapping::kFloat}) {
    CheckAll<uint8_t>(mapping);
    CheckAll<uint16_t>(mapping);
  }
}

TEST_CASE("ordinals of BF16 ascend with the numbers and minus zero is below zero", "[delta]") {
  const auto ordinal = [](uint32_t bits) {
    return static_cast<int16_t>(ToOrdinal(static_cast<uint16_t>(bits), Mapping::kFloat));
  };
  REQUIRE(ordinal(0x0000) == 0);
  REQUIRE(ordinal(0x8000) == -1);
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {  // up to infinity
    REQUIRE(ordinal(bits + 1) == ordinal(bits) + 1);
    REQUIRE(ordinal(0x8000 + bits + 1) == ordinal(0x8000 + bits) - 1);
  }
}

TEST_CASE("32- and 64-bit ordinals map back to their values and order random floats", "[delta]") {
  samples::Random random(samples::TestSeed());
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t wide = random.Next();
    REQUIRE(FromOrdinal(ToOrdinal(wide, Mapping::kFloat), Mapping::kFloat) == wide);
    const uint32_t a = static_cast<uint32_t>(wide);
    const uint32_t b = static_cast<uint32_t>(wide >> 32);
    const float fa = std::bit_cast<float>(a);
    const float fb = std::bit_cast<float>(b);
    if (std::isnan(fa) || std::isnan(fb) || fa == fb) continue;
    REQUIRE((fa < fb) == (static_cast<int32_t>(ToOrdinal(a, Mapping::kFloat)) <
                          static_cast<int32_t>(ToOrdinal(b, Mapping::kFloat))));
  }
}

}  // namespace dws
