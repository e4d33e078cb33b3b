// Every variant lists the same words and makes the same values, and both equal the result of
// applying the changes to the whole block.
#include "common/delta/kernels/changed_words.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "common/base/instruction_set.h"
#include "common/delta/bits/element.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/blocks/predict.h"

namespace dws {
namespace {

constexpr DType kDTypes[] = {DType::kI8,  DType::kF8E4M3, DType::kU16, DType::kBF16,
                             DType::kI32, DType::kF32,    DType::kU64, DType::kF64};

struct Sample {
  DType dtype = DType::kBF16;
  std::vector<std::byte> block;
  DecodedBlock changes;
  std::vector<uint32_t> offsets;
};

// A block of `words` whole words with changes of random density, at a random alignment in memory.
Sample MakeSample(std::mt19937_64& random) {
  Sample sample{.dtype = kDTypes[random() % std::size(kDTypes)], .block = {}, .changes = {}};
  const uint32_t width = ElementBytes(sample.dtype);
  sample.block.resize((1 + random() % 300) * 8);
  for (std::byte& byte : sample.block) byte = static_cast<std::byte>(random());
  sample.changes.kind =
      random() % 3 == 0 ? DecodedBlock::Kind::kValues : DecodedBlock::Kind::kSteps;
  const uint64_t rarity = 1 + random() % 40;
  for (uint32_t i = 0; i < sample.block.size() / width; ++i) {
    if (random() % rarity != 0) continue;
    sample.changes.positions.push_back(static_cast<uint16_t>(i));
    sample.changes.values.push_back(random() & LowBits(width * 8));
    sample.offsets.push_back(i * width);
  }
  return sample;
}

struct Listed {
  std::vector<std::byte> values;
  std::vector<uint16_t> numbers;
  std::vector<uint64_t> before;
  std::vector<uint64_t> after;

  friend bool operator==(const Listed&, const Listed&) = default;
};

template <typename Kernel>
Listed List(const Sample& sample, Kernel kernel) {
  const uint32_t width = ElementBytes(sample.dtype);
  const uint32_t count = static_cast<uint32_t>(sample.offsets.size());
  const size_t room = count + kernels::kWordListSlack;
  Listed listed{.values = std::vector<std::byte>(size_t{count} * width),
                .numbers = std::vector<uint16_t>(room),
                .before = std::vector<uint64_t>(room),
                .after = std::vector<uint64_t>(room)};
  const kernels::ElementChanges changes{
      .memory = sample.block.data(),
      .offsets = sample.offsets.data(),
      .positions = sample.changes.positions.data(),
      .values = sample.changes.values.data(),
      .count = count,
      .element_bytes = width,
      .is_float = MappingOf(sample.dtype) == Mapping::kFloat,
      .are_steps = sample.changes.kind == DecodedBlock::Kind::kSteps,
      .fetch_memory = sample.block.data(),
      .fetch_offsets = sample.offsets.data(),
      .fetch_count = count / 2};
  const uint32_t words = kernel(changes, listed.values.data(),
                                {.numbers = listed.numbers.data(),
                                 .before = listed.before.data(),
                                 .after = listed.after.data()});
  listed.numbers.resize(words);
  listed.before.resize(words);
  listed.after.resize(words);
  return listed;
}

TEST_CASE("every instruction set lists the same changed words", "[kernels]") {
  if (MachineInstructionSet() != InstructionSet::kAvx512) {
    WARN("no AVX-512 here: nothing to compare with the portable kernel");
    return;
  }
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 5000; ++round) {
    const Sample sample = MakeSample(random);
    REQUIRE(List(sample, kernels::ListChangedWordsAvx512) ==
            List(sample, kernels::ListChangedWordsPortable));
  }
}

TEST_CASE("a prediction equals the result of applying and comparing", "[delta][digest]") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const Sample sample = MakeSample(random);
    const uint32_t width = ElementBytes(sample.dtype);
    std::vector<std::byte> after = sample.block;
    ApplyBlock(sample.dtype, sample.changes, after);
    BlockChanges changes;
    const uint64_t first_word = random();
    const Digest expected = DiffBlock(sample.dtype, sample.block, after, first_word, changes);

    std::vector<std::byte> values(sample.offsets.size() * width);
    PredictScratch scratch;
    const ElementPlaces places{.memory = sample.block.data(), .offsets = sample.offsets};
    const Digest difference =
        PredictElements(sample.dtype, sample.changes, places, first_word, values.data(),
                        random() % 2 == 0 ? places : ElementPlaces{}, scratch);
    REQUIRE(difference == expected);
    std::vector<std::byte> written = sample.block;
    for (size_t i = 0; i < sample.offsets.size(); ++i) {
      std::memcpy(written.data() + sample.offsets[i], values.data() + i * width, width);
    }
    REQUIRE(written == after);
  }
}

}  // namespace
}  // namespace dws
