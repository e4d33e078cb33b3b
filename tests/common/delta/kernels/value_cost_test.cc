// Every instruction set counts the same costs.
#include "common/delta/kernels/value_cost.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>

#include "tests/common/delta/samples.h"

namespace dws::kernels {
namespace {

using samples::Random;

constexpr InstructionSet kAllSets[] = {InstructionSet::kPortable, InstructionSet::kAvx2,
                                       InstructionSet::kAvx512};

}  // namespace

TEST_CASE("every instruction set counts the same costs of values", "[delta][kernels]") {
  Random random(samples::TestSeed());
  for (size_t count = 0; count < 200; ++count) {
    std::vector<uint64_t> values(count);
    for (uint64_t& value : values) value = random.Next() >> random.Below(65) % 64;
    if (count > 3) values[random.Below(count)] = 0;
    if (count > 50) values[random.Below(count)] = ~uint64_t{0};
    for (uint32_t width = 0; width <= 64; ++width) {
      uint64_t max = 0;
      size_t narrow = 0;
      for (const uint64_t value : values) {
        max = std::max(max, value);
        narrow += static_cast<uint32_t>(std::bit_width(value)) <= width ? 1 : 0;
      }
      for (const InstructionSet set : kAllSets) {
        if (set > MachineInstructionSet()) continue;
        INFO(ToString(set) << ": " << count << " values, width " << width);
        REQUIRE(MaxValue(set, values.data(), count) == max);
        REQUIRE(CountNarrow(set, values.data(), count, width) == narrow);
      }
    }
  }
}

TEST_CASE("every instruction set sums the same quotients", "[delta][kernels]") {
  Random random(samples::TestSeed());
  for (int round = 0; round < 500; ++round) {
    std::vector<uint64_t> values(random.Below(round % 10 == 0 ? 5000 : 60));
    // Narrow ones alone, wide ones, and wide ones after narrow ones.
    const size_t wide_from = round % 3 == 0 ? values.size() : round % 3 == 1 ? 0 : 1024;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = random.Next() >> (63 - random.Below(i < wide_from ? 31 : 64));
    }
    const uint32_t first = static_cast<uint32_t>(random.Below(59));
    std::vector<QuotientSum> before(random.Below(6));
    for (QuotientSum& sum : before) sum = {.quotients = random.Below(9), .at_limit = 3};
    std::vector<QuotientSum> expected = before;
    for (size_t w = 0; w < expected.size(); ++w) {
      for (const uint64_t value : values) {
        const uint64_t quotient = std::min<uint64_t>(value >> (first + w), 16);
        expected[w].quotients += quotient;
        expected[w].at_limit += quotient / 16;
      }
    }
    for (const InstructionSet set : kAllSets) {
      if (set > MachineInstructionSet()) continue;
      INFO(ToString(set) << ": " << values.size() << " values, width " << first);
      std::vector<QuotientSum> sums = before;
      SumQuotients(set, values.data(), values.size(), first, 16, sums);
      REQUIRE(sums == expected);
    }
  }
}

}  // namespace dws::kernels
