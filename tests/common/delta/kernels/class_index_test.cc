// Every instruction set gives the class and rank of each element, and finds the element by them,
// at every alignment and tail.
#include "common/delta/kernels/class_index.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>

#include "tests/common/delta/samples.h"

namespace dws::kernels {
namespace {

using samples::Bytes;
using samples::Random;

constexpr InstructionSet kSets[] = {InstructionSet::kPortable, InstructionSet::kAvx2,
                                    InstructionSet::kAvx512};

// The magnitude byte of element `i`, from its bytes: the eight bits below the sign.
uint8_t ByteOf(const Bytes& bytes, size_t shift, uint32_t element_bytes, uint32_t i) {
  const std::byte* const end = bytes.data() + shift + (size_t{i} + 1) * element_bytes;
  if (element_bytes == 1) return static_cast<uint8_t>(end[-1]) & 0x7F;
  return static_cast<uint8_t>(static_cast<uint8_t>(end[-1]) << 1 |
                              static_cast<uint8_t>(end[-2]) >> 7);
}

// Thresholds that lie close together, or anywhere.
ClassTable TableOf(Random& random, uint32_t element_bytes, size_t class_count) {
  ClassTable table;
  const uint64_t top = element_bytes == 1 ? 127 : 255;
  const bool near = random.Chance(0.5);
  uint64_t last = near ? random.Below(top - 16) : 0;
  while (table.class_count() < class_count) {
    last += 1 + random.Below(near ? 10 : top / class_count);
    if (last > top) break;
    table.thresholds[table.threshold_count++] = static_cast<uint8_t>(last);
  }
  return table;
}

}  // namespace

TEST_CASE("class index: every instruction set counts classes as a simple loop does", "[kernels]") {
  Random random(samples::TestSeed());
  const auto index = std::make_unique<ClassIndex>();
  const auto mask = std::make_unique<BlockMask>();
  for (const uint32_t element_bytes : {1U, 2U, 4U, 8U}) {
    for (const uint32_t count : {1U, 2U, 31U, 32U, 33U, 63U, 64U, 65U, 127U, 128U, 255U, 256U, 257U,
                                 1000U, 65'535U, 65'536U}) {
      for (size_t class_count = 1; class_count <= kClassesMax; ++class_count) {
        if (count > 1000 && class_count % 3 != 2 && class_count != 1) continue;
        const size_t shift = random.Below(64);
        const Bytes bytes = samples::RandomBytes(random, shift + size_t{count} * element_bytes);
        const ClassTable table = TableOf(random, element_bytes, class_count);
        const ClassIndexInput input{.elements = bytes.data() + shift,
                                    .element_bytes = element_bytes,
                                    .count = count,
                                    .classes = &table};
        const double density = class_count % 2 == 0 ? 0.02 : 0.6;
        std::vector<uint16_t> positions;
        std::vector<uint8_t> classes;
        std::vector<uint16_t> ranks;
        std::array<std::vector<uint16_t>, kClassesMax> by_class;
        std::array<uint32_t, kClassesMax> sizes{};
        BlockMask expected{};
        for (uint32_t i = 0; i < count; ++i) {
          const size_t c = ClassOf(table, ByteOf(bytes, shift, element_bytes, i));
          const auto rank = static_cast<uint16_t>(sizes[c]++);
          if (!random.Chance(density) && i != 0 && i + 1 != count) continue;
          positions.push_back(static_cast<uint16_t>(i));
          classes.push_back(static_cast<uint8_t>(c));
          ranks.push_back(rank);
          by_class[c].push_back(rank);
          expected[i / 64] |= uint64_t{1} << (i % 64);
        }
        for (const InstructionSet set : kSets) {
          if (set > MachineInstructionSet()) continue;
          INFO(ToString(set) << ": " << count << " x " << element_bytes << ", " << class_count);
          std::memset(static_cast<void*>(index.get()), random.Chance(0.5) ? 0 : 0xFF,
                      sizeof(ClassIndex));
          IndexClasses(set, input, *index);
          REQUIRE(index->sizes == sizes);
          for (const InstructionSet other : kSets) {
            if (other > MachineInstructionSet()) continue;
            INFO("used by " << ToString(other));
            std::vector<uint16_t> found(positions.size());
            RankElements(other, *index, positions.data(), classes.data(),
                         static_cast<uint32_t>(positions.size()), found.data());
            REQUIRE(found == ranks);
            const auto size = static_cast<uint32_t>(positions.size());
            const uint32_t stride = size + kNumbersSlack;
            std::vector<uint16_t> sorted(stride * table.class_count());
            std::array<uint32_t, kClassesMax> sorted_sizes{};
            SortByClass(other, classes.data(), ranks.data(), size, table.class_count(), stride,
                        sorted.data(), sorted_sizes.data());
            mask->fill(0);
            FetchAhead ahead;
            for (size_t c = 0; c < table.class_count(); ++c) {
              const auto first = sorted.begin() + static_cast<ptrdiff_t>(c * stride);
              REQUIRE(std::vector(first, first + sorted_sizes[c]) == by_class[c]);
              FlipRanks(other, *index, c, by_class[c].data(),
                        static_cast<uint32_t>(by_class[c].size()), mask->data(), ahead);
            }
            REQUIRE(*mask == expected);
          }
        }
      }
    }
  }
}

TEST_CASE("class index: every instruction set marks the members of the classes asked for",
          "[kernels]") {
  Random random(samples::TestSeed());
  const auto index = std::make_unique<ClassIndex>();
  for (const uint32_t element_bytes : {1U, 2U, 4U, 8U}) {
    for (const uint32_t count : {1U, 63U, 64U, 65U, 2047U, 2048U, 5000U, 65'536U}) {
      const Bytes bytes = samples::RandomBytes(random, size_t{count} * element_bytes);
      const size_t class_count = count % 2 == 0 ? kClassesMax : 1 + random.Below(kClassesMax);
      const ClassTable table = TableOf(random, element_bytes, class_count);
      for (const uint32_t classes :
           {0U, 1U, 0xFEU, 0xFFU, static_cast<uint32_t>(random.Below(256))}) {
        std::vector<uint64_t> expected(CeilDiv(count, 64));
        for (uint32_t i = 0; i < count; ++i) {
          const size_t c = ClassOf(table, ByteOf(bytes, 0, element_bytes, i));
          expected[i / 64] |= uint64_t{classes >> c & 1U} << (i % 64);
        }
        for (const InstructionSet set : kSets) {
          if (set > MachineInstructionSet()) continue;
          INFO(ToString(set) << ": " << count << " x " << element_bytes << ", " << classes);
          BlockMask marked;
          marked.fill(random.Next());
          IndexClasses(set,
                       {.elements = bytes.data(),
                        .element_bytes = element_bytes,
                        .count = count,
                        .classes = &table,
                        .marked = marked.data(),
                        .marked_classes = static_cast<uint8_t>(classes)},
                       *index);
          REQUIRE(std::equal(expected.begin(), expected.end(), marked.begin()));
        }
      }
    }
  }
}

TEST_CASE("flip ranks: fetches some lines at each rank and none after the end", "[kernels]") {
  const Bytes elements(limits::kBlockElements * 2);
  const ClassTable one_class;
  const auto index = std::make_unique<ClassIndex>();
  const auto mask = std::make_unique<BlockMask>();
  const std::vector<uint16_t> ranks = {0, 1, 2, 1000, 60'000};
  for (const InstructionSet set : kSets) {
    if (set > MachineInstructionSet()) continue;
    INFO(ToString(set));
    IndexClasses(set,
                 {.elements = elements.data(),
                  .element_bytes = 2,
                  .count = limits::kBlockElements,
                  .classes = &one_class},
                 *index);
    const auto first = reinterpret_cast<uintptr_t>(elements.data());
    FetchAhead ahead{.next = first, .end = first + elements.size()};
    const uint64_t each = kLinesARank * FetchAhead::kLineBytes;
    FlipRanks(set, *index, 0, ranks.data(), 5, mask->data(), ahead);
    REQUIRE(ahead.next == first + 5 * each);
    ahead.end = ahead.next + FetchAhead::kLineBytes;
    FlipRanks(set, *index, 0, ranks.data(), 5, mask->data(), ahead);
    REQUIRE(ahead.next == ahead.end);
  }
}

TEST_CASE("list ones: every instruction set lists the ones before the end and none after it",
          "[kernels]") {
  Random random(samples::TestSeed());
  for (const uint32_t size : {0U, 1U, 31U, 32U, 33U, 63U, 64U, 65U, 1000U, 65'536U}) {
    for (const double density : {0.0, 0.01, 0.5, 1.0}) {
      std::vector<uint64_t> words(CeilDiv(size, 64) + 1, ~uint64_t{0});  // ignored after the end
      std::vector<uint16_t> ones;
      for (uint32_t i = 0; i < size; ++i) {
        if (random.Chance(density)) {
          ones.push_back(static_cast<uint16_t>(i));
        } else {
          words[i / 64] &= ~(uint64_t{1} << (i % 64));
        }
      }
      for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx512}) {
        if (set > MachineInstructionSet()) continue;
        std::vector<uint16_t> numbers(size + kNumbersSlack);
        numbers.resize(ListOnes(set, words.data(), size, numbers.data()));
        INFO(ToString(set) << ": " << size << " at " << density);
        REQUIRE(numbers == ones);
      }
    }
  }
}

}  // namespace dws::kernels
