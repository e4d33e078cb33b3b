// Every instruction set finds the same changed words and elements, at every alignment.
#include "common/delta/kernels/diff_lines.h"

#include <catch2/catch.hpp>

#include "common/delta/bits/element.h"
#include "common/model/limits.h"
#include "tests/common/delta/samples.h"

namespace dws::kernels {
namespace {

using samples::Bytes;
using samples::Random;

constexpr InstructionSet kAllSets[] = {InstructionSet::kPortable, InstructionSet::kAvx2,
                                       InstructionSet::kAvx512};

struct Found {
  std::vector<uint16_t> positions;
  std::vector<uint64_t> steps;
  std::vector<uint16_t> words;
  std::vector<uint64_t> words_before;
  std::vector<uint64_t> words_after;

  friend bool operator==(const Found&, const Found&) = default;
};

// What a kernel finds; the arrays have exactly the size that the kernel requires.
Found Run(InstructionSet set, DType dtype, const LineRun& lines) {
  const size_t elements =
      size_t{lines.count} * kLineBytes / ElementBytes(dtype) + DiffArrays::kSlack;
  const size_t words = size_t{lines.count} * 8 + DiffArrays::kSlack;
  Found found{.positions = std::vector<uint16_t>(elements),
              .steps = std::vector<uint64_t>(elements),
              .words = std::vector<uint16_t>(words),
              .words_before = std::vector<uint64_t>(words),
              .words_after = std::vector<uint64_t>(words)};
  DiffArrays arrays{.positions = found.positions.data(),
                    .steps = found.steps.data(),
                    .words = found.words.data(),
                    .words_before = found.words_before.data(),
                    .words_after = found.words_after.data()};
  // In two calls: the second one appends.
  const uint32_t half = lines.count / 2;
  const ElementKind kind{.bytes = ElementBytes(dtype), .mapping = MappingOf(dtype)};
  DiffLines(set, kind,
            {.before = lines.before, .after = lines.after, .first = lines.first, .count = half},
            arrays);
  DiffLines(set, kind,
            {.before = lines.before + size_t{half} * kLineBytes,
             .after = lines.after + size_t{half} * kLineBytes,
             .first = lines.first + half,
             .count = lines.count - half},
            arrays);
  found.positions.resize(arrays.element_count);
  found.steps.resize(arrays.element_count);
  found.words.resize(arrays.word_count);
  found.words_before.resize(arrays.word_count);
  found.words_after.resize(arrays.word_count);
  return found;
}

// The expected result, computed from the definition.
Found Expected(DType dtype, const LineRun& lines) {
  Found found;
  const size_t size = size_t{lines.count} * kLineBytes;
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t before = LoadLe<uint64_t>(lines.before + at);
    const uint64_t after = LoadLe<uint64_t>(lines.after + at);
    if (before == after) continue;
    found.words.push_back(static_cast<uint16_t>(lines.first * 8 + at / 8));
    found.words_before.push_back(before);
    found.words_after.push_back(after);
  }
  WithElement(dtype, [&](auto element) {
    using E = decltype(element);
    using Bits = typename E::Bits;
    for (size_t at = 0; at < size; at += E::kBytes) {
      const Bits before = LoadLe<Bits>(lines.before + at);
      const Bits after = LoadLe<Bits>(lines.after + at);
      if (before == after) continue;
      found.positions.push_back(static_cast<uint16_t>((lines.first * kLineBytes + at) / E::kBytes));
      found.steps.push_back(static_cast<Bits>(E::Ordinal(after) - E::Ordinal(before)));
    }
  });
  return found;
}

void CheckAll(DType dtype, const LineRun& lines) {
  const Found expected = Expected(dtype, lines);
  for (const InstructionSet set : kAllSets) {
    if (set > MachineInstructionSet()) continue;
    INFO(ToString(dtype) << ", " << ToString(set) << ", " << lines.count << " lines");
    REQUIRE(Run(set, dtype, lines) == expected);
  }
}

}  // namespace

TEST_CASE("every instruction set finds the same changes at every alignment", "[delta][kernels]") {
  Random random(samples::TestSeed());
  for (const DType dtype : samples::kAllDTypes) {
    for (size_t offset = 0; offset < kLineBytes; ++offset) {
      const uint32_t count = static_cast<uint32_t>(random.Below(100));
      const Bytes before = samples::RandomBytes(random, (size_t{count} + 1) * kLineBytes);
      // At 0.97 every element differs in about a third of the lines of 32.
      const double density = offset % 3 == 0 ? 0.5 : offset % 3 == 1 ? 0.97 : 0.01;
      const Bytes after = samples::Nudge(random, dtype, before, density, 7);
      const size_t shift = offset / ElementBytes(dtype) * ElementBytes(dtype);
      // Two buffers at different alignments.
      Bytes moved(after.size() + 1);
      std::copy(after.begin() + static_cast<ptrdiff_t>(shift), after.end(), moved.begin() + 1);
      const uint32_t lines_of_block = limits::kBlockElements * ElementBytes(dtype) / kLineBytes;
      CheckAll(dtype, {.before = before.data() + shift,
                       .after = moved.data() + 1,
                       .first = static_cast<uint32_t>(random.Below(lines_of_block - count)),
                       .count = count});
    }
  }
}

TEST_CASE("every instruction set finds the same in hostile and in full blocks",
          "[delta][kernels]") {
  Random random(samples::TestSeed());
  for (const DType dtype : samples::kAllDTypes) {
    for (const uint32_t elements : {256u, uint32_t{limits::kBlockElements}}) {
      const uint32_t count = elements * ElementBytes(dtype) / kLineBytes;
      for (const samples::Hostile& pair : samples::HostilePairs(random, dtype, elements)) {
        INFO(pair.name);
        CheckAll(
            dtype,
            {.before = pair.before.data(), .after = pair.after.data(), .first = 0, .count = count});
      }
    }
  }
}

TEST_CASE("one changed element is found wherever it is", "[delta][kernels]") {
  Random random(samples::TestSeed());
  for (const DType dtype : samples::kAllDTypes) {
    const Bytes before = samples::RandomBytes(random, 3 * kLineBytes);
    for (size_t at = 0; at < before.size(); at += ElementBytes(dtype)) {
      Bytes after = before;
      after[at + random.Below(ElementBytes(dtype))] ^= std::byte{1} << random.Below(8);
      CheckAll(dtype, {.before = before.data(), .after = after.data(), .first = 5, .count = 3});
    }
  }
}

}  // namespace dws::kernels
