// Every instruction set finds the same classes and hot changes, and counts the same bits.
#include "common/delta/kernels/class_steps.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "common/base/bytes.h"
#include "tests/common/delta/samples.h"

namespace dws::kernels {
namespace {

using samples::Random;

constexpr InstructionSet kSets[] = {InstructionSet::kPortable, InstructionSet::kAvx2,
                                    InstructionSet::kAvx512};

std::vector<uint8_t> RandomNumbers(Random& random, size_t count, uint64_t below) {
  std::vector<uint8_t> numbers(count);
  for (uint8_t& number : numbers) number = static_cast<uint8_t>(random.Below(below));
  return numbers;
}

}  // namespace

TEST_CASE("mask below: every instruction set marks the bytes below the limit", "[kernels]") {
  Random random(samples::TestSeed());
  for (const uint32_t count : {1U, 31U, 32U, 33U, 63U, 64U, 65U, 127U, 128U, 700U, 65'536U}) {
    const std::vector<uint8_t> bytes = RandomNumbers(random, count, 256);
    for (const int limit : {0, 1, 127, 128, 200, 255}) {
      std::vector<uint64_t> expected(CeilDiv(count, 64), 0);
      for (uint32_t i = 0; i < count; ++i) {
        if (bytes[i] < limit) expected[i / 64] |= uint64_t{1} << (i % 64);
      }
      for (const InstructionSet set : kSets) {
        if (set > MachineInstructionSet()) continue;
        std::vector<uint64_t> words(expected.size(), ~uint64_t{0});
        MaskBelow(set, bytes.data(), count, static_cast<uint8_t>(limit), words.data());
        INFO(ToString(set) << ": " << count << " below " << limit);
        REQUIRE(words == expected);
      }
    }
  }
}

TEST_CASE("classes: every instruction set counts the thresholds a byte reaches", "[kernels]") {
  Random random(samples::TestSeed());
  for (const uint32_t count : {0U, 1U, 31U, 32U, 33U, 64U, 700U, 65'536U}) {
    const std::vector<uint8_t> bytes = RandomNumbers(random, count, 256);
    for (const std::vector<uint8_t>& thresholds : {std::vector<uint8_t>{},
                                                   {1},
                                                   {255},
                                                   {126, 127, 128, 129},
                                                   {1, 2, 100, 127, 128, 254, 255}}) {
      ClassTable table{.threshold_count = static_cast<uint8_t>(thresholds.size())};
      std::copy(thresholds.begin(), thresholds.end(), table.thresholds.begin());
      std::vector<uint8_t> expected(count);
      for (uint32_t i = 0; i < count; ++i) {
        expected[i] = static_cast<uint8_t>(std::count_if(
            thresholds.begin(), thresholds.end(), [&](uint8_t each) { return bytes[i] >= each; }));
      }
      for (const InstructionSet set : kSets) {
        if (set > MachineInstructionSet()) continue;
        std::vector<uint8_t> classes(count, 0xEE);
        ClassesOf(set, bytes.data(), count, table, classes.data());
        INFO(ToString(set) << ": " << count << " bytes, " << thresholds.size() << " thresholds");
        REQUIRE(classes == expected);
      }
    }
  }
}

TEST_CASE("step bits: every instruction set sums what hot and other steps cost", "[kernels]") {
  Random random(samples::TestSeed());
  constexpr uint32_t kColdBitsMax = 140;
  for (const size_t count :
       {size_t{0}, kStepGroup, 5 * kStepGroup, 32 * kStepGroup, size_t{65'536}}) {
    const std::vector<uint8_t> bytes = RandomNumbers(random, count, 256);
    std::vector<uint32_t> sizes(count, ~uint32_t{0});
    std::vector<uint32_t> cold_bits(count, kColdBitsMax);
    for (size_t i = 0; i < count && count != 65'536; ++i) {
      sizes[i] = static_cast<uint32_t>(random.Below(uint64_t{1} << (1 + random.Below(32))));
      cold_bits[i] = static_cast<uint32_t>(random.Below(kColdBitsMax));
    }
    const SizedSteps steps{.bytes = bytes.data(),
                           .sizes = sizes.data(),
                           .cold_bits = cold_bits.data(),
                           .count = count};
    for (const uint32_t width_max : {0U, 7U, 15U}) {
      for (int round = 0; round < 20; ++round) {
        const HotScale hot{.below = static_cast<uint8_t>(random.Below(256)),
                           .scale = static_cast<uint8_t>(random.Below(256)),
                           .width_max = width_max,
                           .quotient_max = 16};
        uint64_t expected = 0;
        for (size_t i = 0; i < count; ++i) {
          if (bytes[i] >= hot.below) {
            expected += cold_bits[i];
            continue;
          }
          const uint32_t width =
              bytes[i] >= hot.scale ? 0 : std::min<uint32_t>(hot.scale - bytes[i], width_max);
          expected += width + 1 + std::min<uint32_t>(sizes[i] >> width, hot.quotient_max);
        }
        for (const InstructionSet set : kSets) {
          if (set > MachineInstructionSet()) continue;
          INFO(ToString(set) << ": " << count << " steps, parameters up to " << width_max);
          REQUIRE(SumStepBits(set, steps, hot) == expected);
        }
      }
    }
  }
}

}  // namespace dws::kernels
