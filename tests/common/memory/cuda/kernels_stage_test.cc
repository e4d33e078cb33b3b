// The stage and commit kernels against the codec for the host: every mode, dtype, density and
// layout.
#include <catch2/catch.hpp>

#include "common/delta/bits/element.h"
#include "common/delta/blocks/diff.h"
#include "tests/common/memory/cuda/stage_cases.h"

namespace dws::cuda {
namespace {

using samples::Bytes;
using samples::Random;

constexpr DType kFloats[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kF16,
                             DType::kBF16,   DType::kF32,    DType::kF64};

}  // namespace

TEST_CASE("staging: every dtype at every density in every mode gives the codec's result",
          "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  EncodeScratch scratch;
  for (const DType dtype : samples::kAllDTypes) {
    std::vector<StageCase> cases;
    for (const uint32_t elements : {1U, 2U, 31U, 33U, 257U, 5001U}) {
      const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
      for (const double density : {0.001, 0.01, 0.1, 0.5, 0.95, 1.0}) {
        const Bytes after = samples::Nudge(random, dtype, before, density,
                                           1 + static_cast<uint32_t>(random.Below(40)));
        AddAllModes(random, "random", dtype, before, after, RandomTable(random, dtype), scratch,
                    cases);
      }
    }
    REQUIRE(CheckStaging(*runner, cases, random) == cases.size());
  }
}

TEST_CASE("staging: full blocks of every width give the codec's result", "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  EncodeScratch scratch;
  for (const DType dtype :
       {DType::kU8, DType::kF8E4M3, DType::kBF16, DType::kI32, DType::kF32, DType::kF64}) {
    std::vector<StageCase> cases;
    for (const uint32_t elements : {65'535U, 65'536U}) {
      const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
      for (const double density : {0.0001, 0.01, 0.2, 1.0}) {
        const Bytes after = samples::Nudge(random, dtype, before, density, 12);
        AddAllModes(random, "random", dtype, before, after, RandomTable(random, dtype), scratch,
                    cases);
      }
    }
    REQUIRE(CheckStaging(*runner, cases, random) == cases.size());
  }
}

TEST_CASE("staging: trained weights under a sender's class table give the codec's result",
          "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  EncodeScratch scratch;
  for (const DType dtype : kFloats) {
    std::vector<StageCase> cases;
    for (const double step : {0.00001, 0.0005, 0.02, 0.5}) {
      const Weights weights = TrainedWeights(random, dtype, 65'536, step);
      AddAllModes(random, "trained", dtype, weights.before, weights.after,
                  ChosenTable(dtype, weights), scratch, cases);
    }
    REQUIRE(!cases.empty());
    REQUIRE(CheckStaging(*runner, cases, random) == cases.size());
  }
}

TEST_CASE("staging: hostile states in every mode give the codec's result", "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  EncodeScratch scratch;
  for (const DType dtype : samples::kAllDTypes) {
    std::vector<StageCase> cases;
    for (const uint32_t elements : {1U, 5U, 1001U}) {
      for (const samples::Hostile& pair : samples::HostilePairs(random, dtype, elements)) {
        AddAllModes(random, pair.name, dtype, pair.before, pair.after, RandomTable(random, dtype),
                    scratch, cases);
      }
    }
    REQUIRE(CheckStaging(*runner, cases, random) == cases.size());
  }
}

TEST_CASE("staging: differences and failures of many blocks of one result are summed", "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  const Bytes before = samples::RandomBytes(random, 2 * 1000);
  const Bytes after = samples::Nudge(random, DType::kBF16, before, 0.1, 5);
  BlockChanges changes;
  const Digest one = dws::DiffBlock(DType::kBF16, before, after, 7, changes);
  const EncodedBlock encoded = EncodeSteps(DType::kBF16, changes, 1000);
  REQUIRE(encoded.mode == BlockMode::kSplitRice);
  Bytes payload = encoded.payload;
  payload.resize(payload.size() + 16);

  const StageBlock sound{.first_word = 7,
                         .payload_bytes = static_cast<uint32_t>(encoded.payload.size()),
                         .elements = 1000,
                         .nnz = encoded.nnz,
                         .result = 1,
                         .parameters = encoded.parameters,
                         .mode = 2,
                         .element = {2, 1}};
  std::vector<StageBlock> blocks(6, sound);
  blocks[1].mode = 6;            // a mode that the kernel does not have
  blocks[2].nnz = 1001;          // more than elements
  blocks[3].payload_bytes -= 1;  // cut off
  blocks[4].payload_bytes += 1;  // too long
  uint64_t arena_bytes = 0;
  for (StageBlock& block : blocks) {
    block.staged = arena_bytes;
    arena_bytes += StagedBytes(block.mode, block.nnz, block.elements, block.element.bytes);
  }
  const uint64_t live = runner->Put(before);
  const StageArgs args{.blocks = runner->PutItems(blocks),
                       .payloads = runner->Put(payload),
                       .places = runner->PutItems(std::vector<Place>{{live, 1000, 1000}}),
                       .arena = runner->Allocate(arena_bytes),
                       .differences = runner->PutItems(std::vector<KernelDigest>(3)),
                       .failures = runner->PutItems(std::vector<uint32_t>(3)),
                       .block_count = static_cast<uint32_t>(blocks.size())};
  runner->Launch(Kernel::kStage, args, blocks.size());
  const auto differences = runner->ReadItems<KernelDigest>(args.differences, 3);
  CHECK(runner->ReadItems<uint32_t>(args.failures, 3) == std::vector<uint32_t>{0, 4, 0});
  CHECK(differences[0].lane0 == 0);
  CHECK(differences[1].lane0 == 2 * one.lane0);
  CHECK(differences[1].lane1 == 2 * one.lane1);
  CHECK(differences[2].lane1 == 0);
}

}  // namespace dws::cuda
