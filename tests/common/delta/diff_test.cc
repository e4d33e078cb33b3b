// Properties of comparing and applying: digests follow from changed words alone, undoing is the
// inverse of applying, and steps of consecutive versions compose.
#include "common/delta/blocks/diff.h"

#include <catch2/catch.hpp>

#include "common/delta/bits/element.h"
#include "common/delta/decoder.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/samples.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::Random;

}  // namespace

TEST_CASE("the digest difference of a diff equals recomputing both digests", "[delta][digest]") {
  Random random(samples::TestSeed());
  for (const DType dtype : samples::kAllDTypes) {
    for (const uint32_t elements : {1u, 3u, 9u, 130u, 4097u, 65'536u}) {
      const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
      const uint64_t first_word = random.Next();
      std::vector<samples::Hostile> pairs = samples::HostilePairs(random, dtype, elements);
      pairs.push_back({"sparse", before, samples::Nudge(random, dtype, before, 0.01, 3)});
      for (const samples::Hostile& pair : pairs) {
        INFO(ToString(dtype) << " x " << elements << ": " << pair.name);
        BlockChanges changes;
        const Digest difference = DiffBlock(dtype, pair.before, pair.after, first_word, changes);
        REQUIRE(DigestBytes(pair.before, first_word) + difference ==
                DigestBytes(pair.after, first_word));
      }
    }
  }
}

TEST_CASE("a diff lists exactly the elements whose bits differ", "[delta]") {
  Random random(samples::TestSeed());
  const Bytes before = samples::RandomBytes(random, 30'011 * 2);
  const Bytes after = samples::Nudge(random, DType::kBF16, before, 0.05, 9);
  BlockChanges changes;
  DiffBlock(DType::kBF16, before, after, 0, changes);
  size_t next = 0;
  for (uint32_t i = 0; i < 30'011; ++i) {
    if (LoadLe<uint16_t>(before.data() + i * 2) == LoadLe<uint16_t>(after.data() + i * 2)) continue;
    REQUIRE(next < changes.size());
    REQUIRE(changes.positions[next] == i);
    REQUIRE(changes.steps[next] != 0);
    ++next;
  }
  REQUIRE(next == changes.size());
}

TEST_CASE("composed steps give the same state as steps applied one after the other", "[delta]") {
  Random random(samples::TestSeed());
  for (const DType dtype : samples::kAllDTypes) {
    for (const double density : {0.01, 0.3, 1.0}) {
      const uint32_t elements = 5000;
      const Bytes v1 = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
      const Bytes v2 = samples::Nudge(random, dtype, v1, density, 3);
      Bytes v3 = samples::Nudge(random, dtype, v2, density, 3);
      std::copy(v1.begin(), v1.begin() + 800, v3.begin());  // steps that cancel
      BlockChanges first;
      BlockChanges second;
      BlockChanges both;
      DiffBlock(dtype, v1, v2, 0, first);
      DiffBlock(dtype, v2, v3, 0, second);
      DiffBlock(dtype, v1, v3, 0, both);
      const BlockChanges composed = ComposeSteps(dtype, first, second);
      INFO(ToString(dtype) << " at " << density);
      REQUIRE(composed.positions == both.positions);
      REQUIRE(composed.steps == both.steps);

      const EncodedBlock block = EncodeSteps(dtype, composed, elements);
      const EncodedBlock direct = EncodeBlock(dtype, both, v3, {});
      REQUIRE(block.payload == direct.payload);
      DecodedBlock decoded;
      REQUIRE(DecodeBlock(dtype, elements, ViewOf(block), decoded).ok());
      Bytes state = v1;
      ApplyBlock(dtype, decoded, state);
      REQUIRE(state == v3);
    }
  }
}

TEST_CASE("steps are added to each element alike, at every density and length", "[delta]") {
  Random random(samples::TestSeed());
  for (const DType dtype : samples::kAllDTypes) {
    for (const uint32_t elements : {1u, 2u, 255u, 256u, 257u, 1023u, 1025u, 65'535u, 65'536u}) {
      for (const uint32_t rarity : {1u, 2u, 3u, 4u, 5u, 100u}) {
        INFO(ToString(dtype) << " x " << elements << ", one in " << rarity);
        const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
        Bytes expected = before;
        DecodedBlock decoded{.kind = DecodedBlock::Kind::kSteps};
        WithElement(dtype, [&](auto element) {
          using Bits = typename decltype(element)::Bits;
          for (uint32_t i = 0; i < elements; ++i) {
            if (random.Next() % rarity != 0) continue;
            const Bits step = static_cast<Bits>(random.Next());
            decoded.positions.push_back(static_cast<uint16_t>(i));
            decoded.values.push_back(step);
            std::byte* const at = expected.data() + size_t{i} * sizeof(Bits);
            StoreLe(at, element.FromStep(LoadLe<Bits>(at), step));
          }
        });
        Bytes block = before;
        ApplyBlock(dtype, decoded, block);
        REQUIRE(block == expected);
        UndoBlock(dtype, decoded, block);
        REQUIRE(block == before);
      }
    }
  }
}

TEST_CASE("undoing no changes leaves a block as it is", "[delta]") {
  Bytes block(16, std::byte{7});
  UndoBlock(DType::kF32, DecodedBlock{}, block);
  REQUIRE(block == Bytes(16, std::byte{7}));
}

}  // namespace dws
