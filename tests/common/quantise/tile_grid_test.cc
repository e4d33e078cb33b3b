// Which tiles changed blocks touch, and which blocks of the outputs tiles write: compared with a
// search over all elements.
#include "common/quantise/tile_grid.h"

#include <catch2/catch.hpp>
#include <set>

#include "common/base/bytes.h"
#include "common/model/limits.h"
#include "tests/common/delta/samples.h"

namespace dws::quantise {
namespace {

using Shape = std::vector<uint64_t>;

// The tile of an element, from the definition.
uint64_t TileOf(const TileGrid& grid, uint64_t element) {
  const MatrixShape& shape = grid.shape();
  const uint64_t matrix = element / (shape.rows * shape.columns);
  const uint64_t row = element / shape.columns % shape.rows;
  const uint64_t column = element % shape.columns;
  const uint64_t across = CeilDiv(shape.columns, grid.tile_columns());
  const uint64_t down = CeilDiv(shape.rows, grid.tile_rows());
  if (grid.recipe().is_transposed()) {
    return (matrix * shape.columns + column) * down + row / grid.tile_rows();
  }
  return (matrix * down + row / grid.tile_rows()) * across + column / grid.tile_columns();
}

std::set<uint64_t> Expand(const std::vector<TileRun>& runs) {
  std::set<uint64_t> tiles;
  uint64_t free = 0;
  for (const TileRun& run : runs) {
    REQUIRE(run.count > 0);
    REQUIRE((tiles.empty() || run.first > free));  // else it would be one run with the one before
    for (uint64_t i = 0; i < run.count; ++i) tiles.insert(run.first + i);
    free = run.first + run.count;
  }
  return tiles;
}

std::vector<uint32_t> BlocksOf(const std::set<uint64_t>& elements) {
  std::set<uint32_t> blocks;
  for (const uint64_t element : elements) {
    blocks.insert(static_cast<uint32_t>(element / limits::kBlockElements));
  }
  return {blocks.begin(), blocks.end()};
}

void CheckShape(const Recipe& recipe, const Shape& shape, samples::Random& random) {
  const TileGrid grid = TileGrid::Create(recipe, shape).value();
  const uint64_t elements = grid.shape().elements();
  const auto block_count = static_cast<uint32_t>(CeilDiv(elements, limits::kBlockElements));
  // Each block alone, none, all, and some.
  constexpr uint32_t kRounds = 9;
  for (uint32_t round = 0; round < kRounds; ++round) {
    std::vector<uint32_t> blocks;
    for (uint32_t block = 0; block < block_count; ++block) {
      const bool chosen = round < 6 ? block == round : random.Chance(0.5 * (round - 6));
      if (chosen) blocks.push_back(block);
    }
    std::set<uint64_t> tiles;
    for (const uint32_t block : blocks) {
      for (uint64_t i = 0; i < limits::kBlockElements; ++i) {
        const uint64_t element = uint64_t{block} * limits::kBlockElements + i;
        if (element < elements) tiles.insert(tiles.end(), TileOf(grid, element));
      }
    }
    INFO(recipe.id << " " << elements << " elements, " << blocks.size() << " blocks");
    const std::vector<TileRun> touched = grid.Touched(blocks);
    REQUIRE(Expand(touched) == tiles);
    if (recipe.Find(Role::kScales) != nullptr) {
      REQUIRE(grid.OutputBlocks(Role::kScales, touched) == BlocksOf(tiles));
    }
    std::set<uint64_t> codes;
    const uint64_t packed = ElementBytes(recipe.Find(Role::kCodes)->dtype) *
                            uint64_t{recipe.codes() == Codes::kE4m3 ? 1u : 2u};
    for (uint64_t element = 0; element < elements; ++element) {
      if (!tiles.contains(TileOf(grid, element))) continue;
      const uint64_t rows = grid.shape().rows;
      const uint64_t columns = grid.shape().columns;
      const uint64_t matrix = element / (rows * columns);
      const uint64_t turned =
          (matrix * columns + element % columns) * rows + element / columns % rows;
      codes.insert(codes.end(), (recipe.is_transposed() ? turned : element) / packed);
    }
    REQUIRE(grid.OutputBlocks(Role::kCodes, touched) == BlocksOf(codes));
  }
}

}  // namespace

TEST_CASE("touched tiles and written blocks are those of a search", "[quantise]") {
  samples::Random random(samples::TestSeed());
  for (const std::string_view id : {"fp8-block128/deepseek", "fp8-block64/deepseek-ue8m0"}) {
    const Recipe recipe = ParseRecipe(id).value();
    for (const Shape& shape : {Shape{300, 1000}, Shape{3, 130, 700}, Shape{100'000, 3}, Shape{1, 1},
                               Shape{2, 70'000}, Shape{5, 128, 256}}) {
      CheckShape(recipe, shape, random);
    }
  }
  for (const std::string_view id : {"mxfp8/floor", "nvfp4/modelopt", "int4-g128/amax7"}) {
    CheckShape(ParseRecipe(id).value(), {3, 130, 768}, random);
    CheckShape(ParseRecipe(id).value(), {1, 128}, random);
  }
  for (const Shape& shape : {Shape{3, 128, 700}, Shape{32, 1}, Shape{2, 1'024, 97}}) {
    CheckShape(ParseRecipe("mxfp4-gpt-oss/modelopt").value(), shape, random);
  }
  for (const std::string_view id : {"fp8-channel/vllm", "fp8-tensor/vllm"}) {
    CheckShape(ParseRecipe(id).value(), {3, 57, 701}, random);
    CheckShape(ParseRecipe(id).value(), {2, 70'000}, random);
  }
}

TEST_CASE("a tensor without elements has no tiles", "[quantise]") {
  for (const Recipe& recipe : AllRecipes()) {
    for (const Shape& shape : {Shape{0, 128}, Shape{128, 0}, Shape{0, 32, 128}}) {
      const TileGrid grid = TileGrid::Create(recipe, shape).value();
      REQUIRE(grid.tile_count() == 0);
      REQUIRE(grid.Touched({}).empty());
      REQUIRE(grid.codes_bytes() == 0);
    }
  }
}

TEST_CASE("a cursor finds the tile of each element, and each tile its elements", "[tile_grid]") {
  samples::Random random(samples::TestSeed());
  for (const Recipe& recipe : AllRecipes()) {
    for (const Shape& shape :
         {Shape{2, 130, 256}, Shape{3, 1, 128}, Shape{1, 300, 1'152}, Shape{2, 64, 128}}) {
      if (recipe.is_transposed() && shape[1] % recipe.tile_rows != 0) continue;
      const TileGrid grid = TileGrid::Create(recipe, shape).value();
      std::vector<uint64_t> tiles(grid.shape().elements(), ~uint64_t{0});
      for (uint64_t tile = 0; tile < grid.tile_count(); ++tile) {
        const TileArea area = grid.AreaOf(tile);
        for (uint64_t row = 0; row < area.rows; ++row) {
          for (uint64_t column = 0; column < area.columns; ++column) {
            uint64_t& found = tiles[area.begin + row * area.stride + column];
            REQUIRE(found == ~uint64_t{0});
            found = tile;
          }
        }
      }
      if (recipe.is_transposed()) {  // it has no cursor
        for (uint64_t element = 0; element < tiles.size(); ++element) {
          REQUIRE(tiles[element] == TileOf(grid, element));
        }
        continue;
      }
      TileCursor cursor(grid);
      for (uint64_t element = 0; element < tiles.size(); element += 1 + random.Below(50)) {
        REQUIRE(tiles[element] == TileOf(grid, element));
        REQUIRE(cursor.TileOf(element) == tiles[element]);
      }
    }
  }
}

}  // namespace dws::quantise
