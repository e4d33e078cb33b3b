// Seconds per GiB of BF16 of each recipe and instruction set, on one core: not a test.
//
//   measure [MIB]      MIB: of the matrix, 128 by default
//
// Kernels take turns; the best of five rounds counts.
#include <fmt/format.h>

#include <chrono>
#include <string>

#include "common/quantise/quantise.h"
#include "tests/common/delta/samples.h"

namespace dws::quantise {
namespace {

constexpr InstructionSet kAllSets[] = {InstructionSet::kPortable, InstructionSet::kAvx2,
                                       InstructionSet::kAvx512};
constexpr uint64_t kColumns = 7168;
constexpr int kRounds = 5;

double Seconds(InstructionSet set, const TileGrid& grid, ByteSpan elements, const Destination& to) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<uint16_t> amax;
  if (grid.recipe().has_tensor_scale) amax = MatrixAmax(set, grid, elements);
  const TileRun all[] = {grid.All()};
  Quantise(set, grid, elements, amax, all, to);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int Main(uint64_t mebibytes) {
  const uint64_t rows = std::max<uint64_t>(1, (mebibytes << 19) / kColumns);
  samples::Random random(1);
  std::vector<std::byte> elements(rows * kColumns * 2);
  for (uint64_t i = 0; i < rows * kColumns; ++i) {
    const uint64_t bits = random.Next();
    StoreLe(elements.data() + i * 2,
            static_cast<uint16_t>(0x3C80 - (bits & 0x3FF) + ((bits >> 16) & 0x8000)));
  }
  fmt::print("seconds per GiB of BF16 {:>12} {:>10} {:>10}\n", "portable", "avx2", "avx512");
  for (const Recipe& recipe : AllRecipes()) {
    const TileGrid grid = TileGrid::Create(recipe, {rows, kColumns}).value();
    std::vector<std::byte> codes(grid.codes_bytes());
    std::vector<std::byte> scales(grid.scales_bytes());
    double best[std::size(kAllSets)] = {1e9, 1e9, 1e9};
    for (int round = 0; round < kRounds; ++round) {
      for (size_t s = 0; s < std::size(kAllSets); ++s) {
        if (kAllSets[s] > MachineInstructionSet()) continue;
        best[s] = std::min(
            best[s], Seconds(kAllSets[s], grid, elements, {.codes = codes, .scales = scales}));
      }
    }
    const double per_gib = 0x1p30 / static_cast<double>(elements.size());
    fmt::print("{:31}", recipe.id);
    for (const double seconds : best) {
      fmt::print(" {:>10}", seconds > 1e8 ? "-" : fmt::format("{:.3f}", seconds * per_gib));
    }
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace dws::quantise

int main(int argc, char** argv) {
  return dws::quantise::Main(argc > 1 ? std::stoull(argv[1]) : 128);
}
