// The stage kernel on damaged payloads: it accepts exactly what the codec for the host accepts,
// with the same result, and stays inside its buffers (run this under AddressSanitizer).
#include <catch2/catch.hpp>

#include "common/delta/bits/element.h"
#include "tests/common/memory/cuda/stage_cases.h"

namespace dws::cuda {
namespace {

using samples::Bytes;
using samples::Random;

constexpr DType kDTypes[] = {DType::kU8,  DType::kF8E4M3, DType::kBF16,
                             DType::kI16, DType::kF32,    DType::kF64};

// Damages up to three fields or parts of the payload.
void Damage(Random& random, StageCase& each) {
  EncodedBlock& block = each.block;
  const uint64_t count = 1 + random.Below(3);
  for (uint64_t i = 0; i < count; ++i) {
    switch (random.Below(8)) {
      case 0:
        block.parameters ^= static_cast<uint16_t>(1 << random.Below(16));
        break;
      case 1:
        block.nnz += static_cast<uint32_t>(random.Below(5)) - 2;
        break;
      case 2:
        block.payload.resize(random.Below(block.payload.size() + 1));
        break;
      case 3:
        for (uint64_t more = 1 + random.Below(9); more > 0; --more) {
          block.payload.push_back(static_cast<std::byte>(random.Next()));
        }
        break;
      case 4:
        each.table = RandomTable(random, each.dtype);
        break;
      default:
        if (block.payload.empty()) break;
        block.payload[random.Below(block.payload.size())] ^=
            static_cast<std::byte>(1 << random.Below(8));
        break;
    }
  }
  // The number of changes stays possible: callers check it before they decode.
  const auto elements = static_cast<uint32_t>(each.before.size() / ElementBytes(each.dtype));
  block.nnz = std::clamp(block.nnz, 1U, elements);
}

}  // namespace

TEST_CASE("the stage kernel refuses the damaged payloads that the codec refuses", "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  EncodeScratch scratch;
  size_t sound = 0;
  size_t all = 0;
  for (int round = 0; round < 40; ++round) {
    const DType dtype = kDTypes[random.Below(std::size(kDTypes))];
    std::vector<StageCase> originals;
    for (const uint32_t elements : {1U, 40U, 700U, 3000U}) {
      const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
      const Bytes after = samples::Nudge(random, dtype, before, random.Chance(0.5) ? 0.02 : 0.5,
                                         1 + static_cast<uint32_t>(random.Below(30)));
      AddAllModes(random, "damaged", dtype, before, after, RandomTable(random, dtype), scratch,
                  originals);
    }
    std::vector<StageCase> cases;
    for (int copy = 0; copy < 12; ++copy) {
      for (StageCase each : originals) {
        Damage(random, each);
        cases.push_back(std::move(each));
      }
    }
    sound += CheckStaging(*runner, cases, random);
    all += cases.size();
  }
  REQUIRE(all > 5000);
  REQUIRE(sound > 0);
  REQUIRE(sound < all);
}

TEST_CASE("random payloads of every mode are refused or staged as the codec does", "[cuda]") {
  Random random(samples::TestSeed());
  const std::unique_ptr<KernelRunner> runner = MakeKernelRunner();
  for (int round = 0; round < 30; ++round) {
    std::vector<StageCase> cases;
    for (int i = 0; i < 100; ++i) {
      StageCase& each = cases.emplace_back();
      each.name = "random payload";
      each.dtype = kDTypes[random.Below(std::size(kDTypes))];
      const uint64_t elements = 1 + random.Below(random.Chance(0.9) ? 200 : 20'000);
      each.before = samples::RandomBytes(random, elements * ElementBytes(each.dtype));
      each.table = RandomTable(random, each.dtype);
      each.layout = RandomLayout(random, elements);
      each.block.mode = static_cast<BlockMode>(1 + random.Below(5));
      each.block.nnz = static_cast<uint32_t>(1 + random.Below(elements));
      each.block.parameters = static_cast<uint16_t>(random.Next());
      if (random.Chance(0.5)) each.block.parameters &= 0x1F;
      each.block.payload = samples::RandomBytes(random, random.Below(400));
      if (random.Chance(0.2)) {
        std::fill(each.block.payload.begin(), each.block.payload.end(), std::byte{0});
      }
    }
    CheckStaging(*runner, cases, random);
  }
}

}  // namespace dws::cuda
