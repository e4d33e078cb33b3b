// What the encoder chooses: the mode of least bytes among those allowed, close to the entropy of
// the changes.
#include "common/delta/encoder.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/delta/bits/element.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/model/limits.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/objects.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::Random;

EncodedBlock Encode(DType dtype, const Bytes& before, const Bytes& after,
                    const EncodeOptions& options) {
  BlockChanges changes;
  DiffBlock(dtype, before, after, 0, changes);
  return EncodeBlock(dtype, changes, after, options);
}

constexpr EncodeOptions kFull{.relative = false, .absolute = true, .zstd = false};
constexpr EncodeOptions kFullZstd{.relative = false, .absolute = true, .zstd = true};
constexpr EncodeOptions kBoth{.relative = true, .absolute = true, .zstd = false};

}  // namespace

TEST_CASE("an unchanged block is empty when relative and holds all values when absolute",
          "[delta]") {
  Random random(samples::TestSeed());
  const Bytes state = samples::RandomBytes(random, 2000);
  REQUIRE(Encode(DType::kBF16, state, state, {}).mode == BlockMode::kEmpty);
  REQUIRE(Encode(DType::kBF16, state, state, {}).payload.empty());
  REQUIRE(Encode(DType::kBF16, state, state, kBoth).mode == BlockMode::kEmpty);
  const EncodedBlock full = Encode(DType::kBF16, state, state, kFull);
  REQUIRE(full.mode == BlockMode::kDenseRaw);
  REQUIRE(full.payload == state);
  REQUIRE(full.nnz == 1000);
}

TEST_CASE("the encoder chooses the mode by the number and size of the changes", "[delta]") {
  Random random(samples::TestSeed());
  const Bytes before = samples::RandomBytes(random, 65'536 * 4);
  const Bytes sparse = samples::Nudge(random, DType::kF32, before, 0.01, 2);
  REQUIRE(Encode(DType::kF32, before, sparse, {}).mode == BlockMode::kSplitRice);
  const Bytes dense = samples::RandomBytes(random, before.size());
  REQUIRE(Encode(DType::kF32, before, dense, {}).mode == BlockMode::kDenseUlp);
  Bytes few = before;
  for (size_t i = 0; i < 5; ++i) {
    StoreLe(few.data() + i * 40'000,
            static_cast<uint32_t>(random.Next()) ^ LoadLe<uint32_t>(&few[i * 40'000]));
  }
  REQUIRE(IsRelative(Encode(DType::kF32, before, few, {}).mode));
  REQUIRE(Encode(DType::kF32, before, few, kBoth).mode == BlockMode::kRaw);
  REQUIRE(Encode(DType::kF32, before, Bytes(before.size()), kFullZstd).mode ==
          BlockMode::kDenseZstd);
  REQUIRE(Encode(DType::kF32, before, before, kFullZstd).mode ==
          BlockMode::kDenseRaw);  // no redundancy
}

TEST_CASE("a relative block is never larger than its values", "[delta]") {
  Random random(samples::TestSeed());
  for (const DType dtype : samples::kAllDTypes) {
    const Bytes before = samples::RandomBytes(random, size_t{65'536} * ElementBytes(dtype));
    const Bytes after = samples::RandomBytes(random, before.size());
    INFO(ToString(dtype));
    REQUIRE(Encode(dtype, before, after, {}).payload.size() <= after.size());
  }
}

TEST_CASE("dense steps lead to the same state as the chosen mode and are never larger than values",
          "[delta]") {
  Random random(samples::TestSeed());
  EncodeScratch scratch;
  for (const DType dtype : samples::kAllDTypes) {
    for (const double density : {0.0, 0.1, 0.7, 1.0}) {
      const uint32_t elements = 1 + static_cast<uint32_t>(random.Below(9000));
      const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
      const Bytes after = samples::Nudge(random, dtype, before, density, 6);
      BlockChanges changes;
      DiffBlock(dtype, before, after, 0, changes);
      const EncodedBlock dense = EncodeDenseSteps(dtype, changes, elements, scratch);
      INFO(ToString(dtype) << " " << density);
      REQUIRE(dense.mode == (changes.size() == 0 ? BlockMode::kEmpty : BlockMode::kDenseUlp));
      REQUIRE(dense.payload.size() <= after.size());
      REQUIRE(dense.payload.size() >= EncodeSteps(dtype, changes, elements).payload.size());
      DecodedBlock decoded;
      REQUIRE(DecodeBlock(dtype, elements, ViewOf(dense), decoded).ok());
      Bytes replica = before;
      ApplyBlock(dtype, decoded, replica);
      REQUIRE(replica == after);
    }
  }
}

TEST_CASE("dense steps that are not tried would not have been smaller", "[delta]") {
  Random random(samples::TestSeed());
  EncodeScratch scratch;
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
    const uint64_t mask = LowBits(ElementBytes(dtype) * 8);
    const uint64_t down = mask;
    const uint64_t lowest = (mask >> 1) + 1;  // the most negative step
    const std::vector<std::vector<uint64_t>> kinds = {
        {down},  {1}, {1, down}, {1, 1, 1, 1, down}, {2, mask - 1}, {down, down, mask - 1},
        {lowest}};
    for (const std::vector<uint64_t>& steps : kinds) {
      for (const double density : {0.01, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.95, 1.0}) {
        const uint32_t elements = 1 + static_cast<uint32_t>(random.Below(9000));
        BlockChanges changes;
        for (uint32_t i = 0; i < elements; ++i) {
          if (!random.Chance(density)) continue;
          changes.positions.push_back(static_cast<uint16_t>(i));
          changes.steps.push_back(steps[random.Below(steps.size())]);
        }
        INFO(ToString(dtype) << ' ' << density << ", one of " << steps.size() << " steps, "
                             << steps[0] << " first; " << elements);
        const EncodedBlock dense = EncodeDenseSteps(dtype, changes, elements, scratch);
        const EncodedBlock chosen = EncodeSteps(dtype, changes, elements, scratch);
        REQUIRE(dense.payload.size() >= chosen.payload.size());
      }
    }
  }
}

TEST_CASE("F32 weights that all move by some hundred units take about ten bits", "[delta]") {
  Random random(samples::TestSeed());
  BlockChanges changes;
  for (uint32_t i = 0; i < limits::kBlockElements; ++i) {
    const uint64_t bits = random.Next();
    const uint32_t step = static_cast<uint32_t>((bits & 0xFF) + (bits >> 8 & 0xFF) +
                                                (bits >> 16 & 0xFF) + (bits >> 24 & 0xFF)) -
                          510;
    if (step == 0) continue;
    changes.positions.push_back(static_cast<uint16_t>(i));
    changes.steps.push_back(step);
  }
  const EncodedBlock block = EncodeSteps(DType::kF32, changes, limits::kBlockElements);
  REQUIRE(block.mode == BlockMode::kDenseUlp);
  const double bits = static_cast<double>(block.payload.size()) * 8 / limits::kBlockElements;
  REQUIRE(bits > 9.0);
  REQUIRE(bits < 10.2);
}

TEST_CASE("a whole object of Bernoulli +-1 steps stays within 4 % of the entropy", "[delta]") {
  const uint64_t seed = samples::TestSeed();
  TensorSpec spec;
  spec.name = "w";
  spec.shape = {2048, 4096};
  const Result<RankLayout> layout = RankLayout::Create({{.tensor = spec}});
  REQUIRE(layout.ok());
  const samples::State before = samples::RandomState(*layout, seed);
  Random random(seed);
  for (const double density : {0.002, 0.008, 0.01, 0.05}) {
    const samples::State after = {samples::Nudge(random, DType::kBF16, before[0], density, 0)};
    const samples::Encoding encoding = samples::EncodeState(*layout, before, after, {});
    double changed = 0;
    for (const EncodedBlock& block : encoding.blocks[0]) changed += block.nnz;
    const double p = changed / (2048.0 * 4096.0);
    const double entropy = (-p * std::log2(p) - (1 - p) * std::log2(1 - p)) / p + 1;
    const double bits =
        static_cast<double>(samples::SealObject(*layout, encoding, 1).size()) * 8 / changed;
    INFO("density " << p << ": " << bits << " bits, entropy " << entropy);
    REQUIRE(bits <= 1.04 * entropy);
    REQUIRE(bits >= entropy * 0.99);
  }
}

}  // namespace dws
