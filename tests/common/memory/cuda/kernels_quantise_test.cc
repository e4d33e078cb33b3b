// The quantising kernel writes what the host's portable kernel writes, bit for bit, for every
// recipe, and nothing beside that.
#include <catch2/catch.hpp>

#include "common/memory/cuda/kernels/quantise/quantise_args.h"
#include "common/quantise/quantise.h"
#include "tests/common/delta/samples.h"
#include "tests/common/memory/cuda/kernel_runner.h"

namespace dws::cuda {
namespace {

using quantise::Recipe;
using quantise::TileGrid;
using quantise::TileRun;
using quantise::Tiles;
using samples::Bytes;
using samples::Random;

constexpr std::byte kUntouched{0xA5};

struct Outputs {
  Bytes codes;
  Bytes scales;
  std::vector<uint16_t> amax;

  explicit Outputs(const TileGrid& grid)
      : codes(grid.codes_bytes(), kUntouched), scales(grid.scales_bytes(), kUntouched) {
    if (TilesOf(grid.recipe().rule) != Tiles::kElements) amax.resize(grid.tile_count(), 0xA5A5);
  }
  friend bool operator==(const Outputs&, const Outputs&) = default;
};

Outputs OnHost(const TileGrid& grid, const Bytes& elements,
               const std::vector<uint16_t>& tensor_amax, const TileRun& tiles) {
  Outputs out(grid);
  quantise::Quantise(InstructionSet::kPortable, grid, elements, tensor_amax, std::span(&tiles, 1),
                     {.codes = out.codes, .scales = out.scales, .amax = out.amax});
  return out;
}

Outputs ByKernel(KernelRunner& runner, const TileGrid& grid, const Bytes& elements,
                 const std::vector<uint16_t>& tensor_amax, const TileRun& tiles) {
  Outputs out(grid);
  const QuantiseArgs args{.source = runner.Put(elements),
                          .tensor_amax = runner.PutItems(tensor_amax),
                          .codes = runner.Put(out.codes),
                          .scales = runner.Put(out.scales),
                          .amax = out.amax.empty() ? 0 : runner.PutItems(out.amax),
                          .rows = grid.shape().rows,
                          .columns = grid.shape().columns,
                          .first = tiles.first,
                          .count = tiles.count,
                          .tile_rows = static_cast<uint32_t>(grid.tile_rows()),
                          .tile_columns = static_cast<uint32_t>(grid.tile_columns()),
                          .rule = grid.recipe().rule};
  runner.Launch(Kernel::kQuantise, args, QuantiseItems(args));
  CHECK(runner.ReadBytes(args.source, elements.size()) == elements);
  out.codes = runner.ReadBytes(args.codes, out.codes.size());
  out.scales = runner.ReadBytes(args.scales, out.scales.size());
  out.amax = runner.ReadItems<uint16_t>(args.amax, out.amax.size());
  runner.Clear();
  return out;
}

void Compare(KernelRunner& runner, Random& random, const TileGrid& grid, const Bytes& elements) {
  std::vector<uint16_t> tensor_amax;
  if (grid.recipe().has_tensor_scale) {
    tensor_amax = quantise::MatrixAmax(InstructionSet::kPortable, grid, elements);
    // A tensor that shares its scale may have the larger amax.
    if (random.Chance(0.3)) tensor_amax[0] = std::max<uint16_t>(tensor_amax[0], 0x3F91);
  }
  // All tiles, and some that lie together: whole columns, where tiles are parts of columns.
  const uint64_t unit =
      grid.recipe().is_transposed() ? grid.shape().rows / grid.tile_rows() : uint64_t{1};
  const uint64_t units = grid.tile_count() / unit;
  const uint64_t first = random.Below(units);
  const TileRun some{.first = first * unit, .count = (1 + random.Below(units - first)) * unit};
  for (const TileRun& tiles : {grid.All(), some}) {
    INFO(grid.recipe().id << ": " << grid.shape().matrices << " x " << grid.shape().rows << " x "
                          << grid.shape().columns << ", tiles " << tiles.first << " + "
                          << tiles.count << ", seed " << samples::TestSeed());
    const Outputs expected = OnHost(grid, elements, tensor_amax, tiles);
    const Outputs found = ByKernel(runner, grid, elements, tensor_amax, tiles);
    CHECK((found.codes == expected.codes));
    CHECK((found.scales == expected.scales));
    CHECK((found.amax == expected.amax));
  }
}

// Near one magnitude, with elements of the kinds that break kernels.
Bytes Elements(Random& random, uint64_t count, double hostile) {
  constexpr uint16_t kHostile[] = {0x0000, 0x8000, 0x0001, 0x807F, 0x7F7F, 0xFF7F,
                                   0x7F80, 0xFF80, 0x7FC0, 0xFF81, 0x0080};
  const uint64_t base = 0x3C00 + (random.Below(3) << 7);
  Bytes elements(count * 2);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t bits = (base - random.Below(0x400)) | (random.Next() & 0x8000);
    if (random.Chance(hostile)) bits = kHostile[random.Below(std::size(kHostile))];
    StoreLe(elements.data() + i * 2, static_cast<uint16_t>(bits));
  }
  return elements;
}

// This shape, or the next larger one that the recipe takes.
TileGrid GridOf(const Recipe& recipe, uint64_t matrices, uint64_t rows, uint64_t columns) {
  const uint64_t wide =
      recipe.has_partial_tiles || recipe.tile_columns == Recipe::kWhole ? 1 : recipe.tile_columns;
  const uint64_t high = recipe.is_transposed() ? recipe.tile_rows : 1;
  return TileGrid::Create(recipe,
                          {matrices, CeilDiv(rows, high) * high, CeilDiv(columns, wide) * wide})
      .value();
}

TEST_CASE("every BF16 value is quantised as on the host", "[kernels]") {
  Random random(samples::TestSeed());
  const auto runner = MakeKernelRunner();
  Bytes all(65'536 * 2);
  for (uint32_t i = 0; i < 65'536; ++i) StoreLe(all.data() + i * 2, static_cast<uint16_t>(i));
  // Each tile has numbers of one sign and near one magnitude, or infinities and NaN as well.
  for (const Recipe& recipe : quantise::AllRecipes()) {
    Compare(*runner, random, GridOf(recipe, 1, 256, 256), all);
    Compare(*runner, random, GridOf(recipe, 256, 32, 8), [&] {
      Bytes of_each = all;
      of_each.resize(GridOf(recipe, 256, 32, 8).shape().elements() * 2, std::byte{0x3C});
      return of_each;
    }());
  }
}

TEST_CASE("tiles of any shape and elements of any kind are quantised as on the host", "[kernels]") {
  Random random(samples::TestSeed());
  const auto runner = MakeKernelRunner();
  for (const Recipe& recipe : quantise::AllRecipes()) {
    for (const double hostile : {0.0, 0.0002, 0.3}) {
      for (int round = 0; round < 5; ++round) {
        const TileGrid grid = GridOf(recipe, 1 + random.Below(4), 1 + random.Below(300),
                                     1 + random.Below(round == 0 ? 4000 : 300));
        Compare(*runner, random, grid, Elements(random, grid.shape().elements(), hostile));
      }
    }
  }
}

TEST_CASE("matrices of zeros, and of one element, are quantised as on the host", "[kernels]") {
  Random random(samples::TestSeed());
  const auto runner = MakeKernelRunner();
  for (const Recipe& recipe : quantise::AllRecipes()) {
    const TileGrid zeros = GridOf(recipe, 2, 130, 140);
    Compare(*runner, random, zeros, Bytes(zeros.shape().elements() * 2));
    const TileGrid one = GridOf(recipe, 1, 1, 1);
    Compare(*runner, random, one, Elements(random, one.shape().elements(), 0.5));
  }
}

}  // namespace
}  // namespace dws::cuda
