// Every instruction set splits and merges classes as the portable one does, at every alignment and
// tail.
#include "common/delta/kernels/class_scan.h"

#include <catch2/catch.hpp>
#include <memory>

#include "tests/common/delta/samples.h"

namespace dws::kernels {
namespace {

using samples::Bytes;
using samples::Random;

// All members are compared only as far as they are defined.
void RequireSame(const ClassMarks& found, const ClassMarks& expected) {
  REQUIRE(found.sizes == expected.sizes);
  for (size_t c = 0; c < kClassesMax; ++c) {
    for (uint32_t rank = 0; rank < expected.sizes[c]; ++rank) {
      const bool marked = (expected.words[c][rank / 64] >> (rank % 64) & 1) != 0;
      REQUIRE((found.words[c][rank / 64] >> (rank % 64) & 1) == (marked ? 1 : 0));
    }
  }
}

ClassTable TableOf(Random& random, uint32_t element_bytes, size_t class_count) {
  ClassTable table;
  const uint64_t top = element_bytes == 1 ? 127 : 255;
  uint64_t last = 0;
  while (table.class_count() < class_count) {
    last += 1 + random.Below(top / class_count);
    if (last > top) break;
    table.thresholds[table.threshold_count++] = static_cast<uint8_t>(last);
  }
  return table;
}

}  // namespace

TEST_CASE("class scan: all instruction sets agree, and merging undoes splitting", "[kernels]") {
  Random random(samples::TestSeed());
  const auto expected = std::make_unique<ClassMarks>();
  const auto found = std::make_unique<ClassMarks>();
  const auto mask = std::make_unique<BlockMask>();
  const auto merged = std::make_unique<BlockMask>();
  for (const uint32_t element_bytes : {1U, 2U, 4U, 8U}) {
    for (const uint32_t count :
         {1U, 2U, 31U, 32U, 33U, 63U, 64U, 65U, 127U, 128U, 1000U, 65'535U, 65'536U}) {
      for (size_t class_count = 1; class_count <= kClassesMax; ++class_count) {
        if (count > 1000 && class_count % 3 != 2) continue;
        const size_t shift = random.Below(64);
        const Bytes bytes = samples::RandomBytes(random, shift + size_t{count} * element_bytes);
        const ClassTable table = TableOf(random, element_bytes, class_count);
        const ClassScanInput input{.elements = bytes.data() + shift,
                                   .element_bytes = element_bytes,
                                   .count = count,
                                   .classes = &table};
        mask->fill(0);
        const double density = class_count % 2 == 0 ? 0.02 : 0.6;
        for (uint32_t i = 0; i < count; ++i) {
          if (random.Chance(density)) (*mask)[i / 64] |= uint64_t{1} << (i % 64);
        }
        SplitByClass(InstructionSet::kPortable, input, *mask, *expected);
        for (const InstructionSet set :
             {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
          if (set > MachineInstructionSet()) continue;
          INFO(ToString(set) << ": " << count << " x " << element_bytes << ", " << class_count);
          for (auto& words : found->words) words.fill(~uint64_t{0});
          SplitByClass(set, input, *mask, *found);
          RequireSame(*found, *expected);
          merged->fill(~uint64_t{0});
          MergeClasses(set, input, *found, *merged);
          REQUIRE(found->sizes == expected->sizes);
          for (uint32_t word = 0; word < CeilDiv(count, 64); ++word) {
            REQUIRE((*merged)[word] == (*mask)[word]);
          }
        }
      }
    }
  }
}

TEST_CASE("list marks: all instruction sets list what is marked, or what is not", "[kernels]") {
  Random random(samples::TestSeed());
  for (const uint32_t size : {0U, 1U, 31U, 32U, 33U, 63U, 64U, 65U, 1000U, 65'536U}) {
    for (const double density : {0.0, 0.01, 0.5, 1.0}) {
      std::vector<uint64_t> words(CeilDiv(size, 64) + 1, ~uint64_t{0});  // bits behind are ignored
      std::vector<uint16_t> marked;
      std::vector<uint16_t> others;
      for (uint32_t i = 0; i < size; ++i) {
        const bool mark = random.Chance(density);
        if (!mark) words[i / 64] &= ~(uint64_t{1} << (i % 64));
        (mark ? marked : others).push_back(static_cast<uint16_t>(i));
      }
      for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx512}) {
        if (set > MachineInstructionSet()) continue;
        for (const bool which : {true, false}) {
          std::vector<uint16_t> numbers(size + kNumbersSlack);
          numbers.resize(ListMarks(set, words.data(), size, which, numbers.data()));
          INFO(ToString(set) << ": " << size << " at " << density);
          REQUIRE(numbers == (which ? marked : others));
        }
      }
    }
  }
}

}  // namespace dws::kernels
