// All kernels write the same bytes, of any part of the tiles, in any floating-point mode, and none
// beside them. That they are the right bytes is shown by oracle_test.py; a few are here by hand.
#include "common/quantise/quantise.h"

#include <catch2/catch.hpp>
#include <cfenv>

#include "common/model/limits.h"
#include "tests/common/delta/samples.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace dws::quantise {
namespace {

using samples::Bytes;
using samples::Random;
using Shape = std::vector<uint64_t>;

constexpr InstructionSet kAllSets[] = {InstructionSet::kPortable, InstructionSet::kAvx2,
                                       InstructionSet::kAvx512};

struct Quantised {
  Bytes codes;
  Bytes scales;
  Bytes tensor_scales;

  friend bool operator==(const Quantised&, const Quantised&) = default;
};

// The outputs in memory with a margin that nothing may write to, at an odd address.
Quantised Run(InstructionSet set, const TileGrid& grid, const Bytes& elements,
              const Quantised* before = nullptr, const std::vector<TileRun>* tiles = nullptr) {
  constexpr size_t kMargin = 65;
  Bytes codes(grid.codes_bytes() + 2 * kMargin, std::byte{0xA5});
  Bytes scales(grid.scales_bytes() + 2 * kMargin, std::byte{0xA5});
  Quantised result;
  if (before != nullptr) {
    std::copy(before->codes.begin(), before->codes.end(), codes.begin() + kMargin);
    std::copy(before->scales.begin(), before->scales.end(), scales.begin() + kMargin);
  }
  std::vector<uint16_t> amax;
  if (grid.recipe().has_tensor_scale) {
    amax = MatrixAmax(set, grid, elements);
    result.tensor_scales.resize(amax.size() *
                                ElementBytes(grid.recipe().Find(Role::kTensorScale)->dtype));
    WriteTensorScales(grid.recipe(), amax, result.tensor_scales);
  }
  const std::vector<TileRun> all = {grid.All()};
  // The source ends where its memory ends: a kernel that reads more is found by AddressSanitizer.
  Quantise(set, grid, elements, amax, tiles == nullptr ? all : *tiles,
           {.codes = MutableByteSpan(codes).subspan(kMargin, grid.codes_bytes()),
            .scales = MutableByteSpan(scales).subspan(kMargin, grid.scales_bytes())});
  for (const Bytes* const output : {&codes, &scales}) {
    for (size_t i = 0; i < kMargin; ++i) {
      REQUIRE((*output)[i] == std::byte{0xA5});
      REQUIRE((*output)[output->size() - 1 - i] == std::byte{0xA5});
    }
  }
  result.codes.assign(codes.begin() + kMargin, codes.end() - kMargin);
  result.scales.assign(scales.begin() + kMargin, scales.end() - kMargin);
  return result;
}

Bytes EveryValue() {
  Bytes elements(65'536 * 2);
  for (uint32_t i = 0; i < 65'536; ++i) {
    StoreLe(elements.data() + i * 2, static_cast<uint16_t>(i));
  }
  return elements;
}

// Near `scale` as the exponent field says, with a few elements of the kinds that break kernels.
Bytes Weights(Random& random, uint64_t count, double hostile) {
  Bytes elements(count * 2);
  constexpr uint16_t kHostile[] = {0x0000, 0x8000, 0x0001, 0x807F, 0x7F7F, 0xFF7F,
                                   0x7F80, 0xFF80, 0x7FC0, 0xFF81, 0x0080};
  const uint64_t base = 0x3C00 + (random.Below(3) << 7);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t bits = (base - random.Below(0x400)) | (random.Next() & 0x8000);
    if (random.Chance(hostile)) bits = kHostile[random.Below(std::size(kHostile))];
    StoreLe(elements.data() + i * 2, static_cast<uint16_t>(bits));
  }
  return elements;
}

Shape Fitting(const Recipe& recipe, uint64_t matrices, uint64_t rows, uint64_t columns) {
  const uint64_t unit =
      recipe.has_partial_tiles || recipe.tile_columns == Recipe::kWhole ? 1 : recipe.tile_columns;
  const uint64_t row_unit = recipe.is_transposed() ? recipe.tile_rows : 1;
  return {matrices, CeilDiv(rows, row_unit) * row_unit, CeilDiv(columns, unit) * unit};
}

void CompareSets(const TileGrid& grid, const Bytes& elements) {
  const Quantised expected = Run(InstructionSet::kPortable, grid, elements);
  for (const InstructionSet set : kAllSets) {
    if (set > MachineInstructionSet()) continue;
    INFO(grid.recipe().id << " " << ToString(set) << ": " << grid.shape().matrices << " x "
                          << grid.shape().rows << " x " << grid.shape().columns);
    REQUIRE((Run(set, grid, elements) == expected));
  }
}

// One row of elements with the recipe's codes, as numbers.
std::vector<int> CodesOfRow(std::string_view id, const std::vector<uint16_t>& row) {
  const TileGrid grid = TileGrid::Create(ParseRecipe(id).value(), {1, row.size()}).value();
  Bytes elements(row.size() * 2);
  std::memcpy(elements.data(), row.data(), elements.size());
  std::vector<int> codes;
  for (const std::byte code : Run(ActiveInstructionSet(), grid, elements).codes) {
    codes.push_back(static_cast<int>(code));
  }
  return codes;
}

}  // namespace

TEST_CASE("every instruction set writes the same codes of all BF16 values", "[quantise]") {
  const Bytes elements = EveryValue();
  for (const Recipe& recipe : AllRecipes()) {
    for (const Shape& shape : {Shape{256, 256}, Shape{512, 128}, Shape{2, 32, 1024}}) {
      CompareSets(TileGrid::Create(recipe, shape).value(), elements);
    }
  }
}

TEST_CASE("every instruction set writes the same bytes of any matrix", "[quantise]") {
  Random random(samples::TestSeed());
  for (const Recipe& recipe : AllRecipes()) {
    for (int round = 0; round < 40; ++round) {
      const Shape shape = Fitting(recipe, 1 + random.Below(3), 1 + random.Below(200),
                                  1 + random.Below(round % 2 == 0 ? 40 : 300));
      const TileGrid grid = TileGrid::Create(recipe, shape).value();
      const uint64_t count = grid.shape().elements();
      CompareSets(grid, round % 4 == 0 ? samples::RandomBytes(random, count * 2)
                                       : Weights(random, count, round % 3 == 0 ? 0.0 : 0.002));
    }
  }
}

TEST_CASE("elements one by one have the codes that their tiles have", "[quantise]") {
  Random random(samples::TestSeed());
  for (const Recipe& recipe : AllRecipes()) {
    const TileGrid grid = TileGrid::Create(recipe, Fitting(recipe, 3, 150, 333)).value();
    const uint64_t count = grid.shape().elements();
    const Bytes elements = Weights(random, count, 0.001);
    Bytes codes(grid.codes_bytes());
    Bytes scales(grid.scales_bytes());
    std::vector<uint16_t> amax(scales.empty() ? 0 : grid.tile_count());
    std::vector<uint16_t> matrix_amax;
    if (recipe.has_tensor_scale) matrix_amax = MatrixAmax(ActiveInstructionSet(), grid, elements);
    const std::vector<TileRun> all = {grid.All()};
    Quantise(ActiveInstructionSet(), grid, elements, matrix_amax, all,
             {.codes = codes, .scales = scales, .amax = amax});
    const auto amax_of_matrix = [&](uint64_t matrix) -> uint16_t {
      return matrix_amax.empty() ? 0 : matrix_amax[matrix];
    };
    for (uint64_t tile = 0; tile < amax.size(); ++tile) {
      const size_t scale_bytes = scales.size() / amax.size();
      REQUIRE(TileAmax(ActiveInstructionSet(), grid, elements, tile) == amax[tile]);
      uint32_t stored = 0;
      std::memcpy(&stored, scales.data() + tile * scale_bytes, scale_bytes);
      REQUIRE(ScaleOf(recipe, amax[tile], amax_of_matrix(tile / (amax.size() / 3))).stored ==
              stored);
    }
    std::vector<uint16_t> some_matrix_amax;
    Bytes some;
    std::vector<uint16_t> some_amax;
    std::vector<uint32_t> expected;
    std::vector<uint64_t> tiles(count);
    for (uint64_t tile = 0; tile < grid.tile_count(); ++tile) {
      const TileArea area = grid.AreaOf(tile);
      for (uint64_t at = 0; at < area.rows * area.columns; ++at) {
        tiles[area.begin + at / area.columns * area.stride + at % area.columns] = tile;
      }
    }
    // The number of an element's code.
    const auto code_of = [&](uint64_t element) {
      if (!recipe.is_transposed()) return element;
      const auto [matrices, rows, columns] = grid.shape();
      return (element / (rows * columns) * columns + element % columns) * rows +
             element / columns % rows;
    };
    for (uint64_t i = 0; i < count; i += random.Below(40)) {
      some.insert(some.end(), elements.begin() + i * 2, elements.begin() + i * 2 + 2);
      const uint16_t of_matrix = amax_of_matrix(i / (count / 3));
      some_amax.push_back(amax.empty() ? of_matrix : amax[tiles[i]]);
      if (recipe.has_tensor_scale) some_matrix_amax.push_back(of_matrix);
      const uint32_t bits = recipe.codes() == Codes::kE4m3 ? 8 : 4;
      const auto byte = static_cast<uint32_t>(codes[code_of(i) * bits / 8]);
      expected.push_back(bits == 8 ? byte : byte >> (code_of(i) % 2 * 4) & 15);
    }
    for (const InstructionSet set : kAllSets) {
      if (set > MachineInstructionSet()) continue;
      INFO(recipe.id << " " << ToString(set));
      Bytes found(expected.size());
      QuantiseElements(set, recipe, some, some_amax, some_matrix_amax, found);
      for (size_t i = 0; i < found.size(); ++i) {
        REQUIRE(static_cast<uint32_t>(found[i]) == expected[i]);
      }
    }
  }
}

TEST_CASE("every instruction set has the same codes for any scales of tile and matrix",
          "[quantise]") {
  Random random(samples::TestSeed());
  for (const Recipe& recipe : AllRecipes()) {
    if (!recipe.has_tensor_scale) continue;
    // Every amax of a tile with some of matrices, among them those that leave no usable scale; at
    // times two matrices meet.
    for (uint32_t of_matrix = 0; of_matrix < 0x8000; of_matrix += 0x1F + random.Below(0x3FF)) {
      std::vector<uint16_t> amax;
      std::vector<uint16_t> matrix_amax;
      Bytes elements;
      for (uint32_t of_tile = 0; of_tile < 0x8000; ++of_tile) {
        amax.push_back(static_cast<uint16_t>(of_tile));
        matrix_amax.push_back(
            static_cast<uint16_t>(random.Chance(0.001) ? random.Below(0x8000) : of_matrix));
        const uint64_t magnitude = random.Chance(0.5) ? of_tile : random.Below(of_tile + 1);
        elements.push_back(static_cast<std::byte>(magnitude & 0xFF));
        elements.push_back(static_cast<std::byte>(magnitude >> 8 | (random.Next() & 0x80)));
      }
      Bytes expected(amax.size());
      QuantiseElements(InstructionSet::kPortable, recipe, elements, amax, matrix_amax, expected);
      for (const InstructionSet set : kAllSets) {
        if (set > MachineInstructionSet()) continue;
        INFO(recipe.id << " " << ToString(set) << ", amax of the matrix " << of_matrix);
        Bytes found(amax.size());
        QuantiseElements(set, recipe, elements, amax, matrix_amax, found);
        REQUIRE((found == expected));
      }
    }
  }
}

TEST_CASE("tiles that changed blocks touch are all that changes", "[quantise]") {
  Random random(samples::TestSeed());
  for (const Recipe& recipe : AllRecipes()) {
    const TileGrid grid = TileGrid::Create(recipe, Fitting(recipe, 2, 300, 500)).value();
    const uint64_t count = grid.shape().elements();
    Bytes elements = Weights(random, count, 0.0);
    // The largest element stays where it is, so that a tensor scale does not move.
    for (const uint64_t matrix : {0, 1}) {
      StoreLe<uint16_t>(elements.data() + matrix * count, 0x4000);
    }
    const Quantised before = Run(ActiveInstructionSet(), grid, elements);
    std::vector<uint32_t> changed;
    for (uint32_t block = 0; block < CeilDiv(count, limits::kBlockElements); ++block) {
      if (random.Chance(0.5)) continue;
      changed.push_back(block);
      const uint64_t end = std::min<uint64_t>(count, (block + 1) * limits::kBlockElements);
      for (uint64_t i = block * limits::kBlockElements + 1; i < end; i += 1 + random.Below(90)) {
        if (i * 2 == count) continue;
        elements[i * 2] ^= static_cast<std::byte>(random.Below(256));
      }
    }
    const std::vector<TileRun> touched = grid.Touched(changed);
    INFO(recipe.id);
    REQUIRE((Run(ActiveInstructionSet(), grid, elements, &before, &touched) ==
             Run(ActiveInstructionSet(), grid, elements)));
  }
}

TEST_CASE("the thread's floating-point mode changes nothing, and stays", "[quantise]") {
  Random random(samples::TestSeed());
  const Bytes elements = EveryValue();
  for (const Recipe& recipe : AllRecipes()) {
    const TileGrid grid = TileGrid::Create(recipe, {512, 128}).value();
    for (const InstructionSet set : kAllSets) {
      if (set > MachineInstructionSet()) continue;
      const Quantised expected = Run(set, grid, elements);
      INFO(recipe.id << " " << ToString(set));
#if defined(__x86_64__)
      // Subnormals are zeros, on both sides.
      const unsigned int usual = _mm_getcsr();
      _mm_setcsr(usual | 0x8040);
      const Quantised flushed = Run(set, grid, elements);
      const unsigned int after = _mm_getcsr();
      _mm_setcsr(usual);
      REQUIRE((flushed == expected));
      REQUIRE((after & 0x8040) == 0x8040);
#endif
      std::fesetround(FE_UPWARD);
      const Quantised upward = Run(set, grid, elements);
      const int rounding = std::fegetround();
      std::fesetround(FE_TONEAREST);
      REQUIRE((upward == expected));
      REQUIRE(rounding == FE_UPWARD);
    }
  }
}

TEST_CASE("the largest magnitude is found at any place and length", "[quantise]") {
  Random random(samples::TestSeed());
  for (uint64_t count = 0; count < 200; ++count) {
    Bytes elements(count * 2);
    REQUIRE(AbsMax(ActiveInstructionSet(), elements) == 0);
    for (uint64_t at = 0; at < count; ++at) {
      const auto bits = static_cast<uint16_t>(1 + random.Below(0x7FFF));
      Bytes one = elements;
      StoreLe(one.data() + at * 2, static_cast<uint16_t>(bits | 0x8000));
      for (const InstructionSet set : kAllSets) {
        if (set <= MachineInstructionSet()) REQUIRE(AbsMax(set, one) == bits);
      }
    }
  }
}

TEST_CASE("codes are those worked out by hand", "[quantise]") {
  // BF16: 448 is 43E0, 1 is 3F80, 464 (a tie of E4M3 with what would be 480) has amax 448 beside it
  // only with a tensor scale.
  REQUIRE(CodesOfRow("fp8-tensor/vllm", {0x43E0, 0xC3E0, 0x3F80, 0xBF80, 0x0000, 0x8000, 0x3C80,
                                         0x3B00, 0x3A80, 0x3A81}) ==
          std::vector<int>{0x7E, 0xFE, 0x38, 0xB8, 0x00, 0x80, 0x08, 0x01, 0x00, 0x01});
  // The amax 6 with the matrix's amax 2688: both scales are 1.
  std::vector<uint16_t> fours(32, 0);
  fours[0] = 0x4528;  // 2688
  const uint16_t group[] = {0x40C0, 0xC0C0, 0x40A0, 0x40A1, 0x3E80, 0x3E81, 0xBE80, 0x8000,
                            0x3F40, 0x3FA0, 0x3FE0, 0x4020, 0x4060, 0xBF80, 0x3FC0, 0x4040};
  std::copy(std::begin(group), std::end(group), fours.begin() + 16);
  const std::vector<int> packed = CodesOfRow("nvfp4/modelopt", fours);
  REQUIRE(std::vector<int>(packed.begin() + 8, packed.end()) ==
          std::vector<int>{0xF7, 0x76, 0x10, 0x08, 0x22, 0x44, 0xA6, 0x53});
  // amax 7 of 7.5: s = bf16(14 / 15) = 0x3F6F; the second element is -7.
  std::vector<uint16_t> ints(32, 0);
  ints[0] = 0x40E0;
  ints[1] = 0xC0E0;
  const std::vector<int> nibbles = CodesOfRow("int4-g32/amax7.5", ints);
  REQUIRE(nibbles[0] == 0x0F);  // 7.5 rounds to 8, clamped to 7; -7.5 rounds to -8
  REQUIRE(nibbles[1] == 0x88);
  REQUIRE(CodesOfRow("int4-g32/amax7", ints)[0] == 0x1F);
}

TEST_CASE("codes of columns are those worked out by hand", "[quantise]") {
  // One column whose amax is 6, so that its scale is 1: ties and both zeros. The second column is
  // of zeros, the third has the amax 6.03125, of which the scale is 2.
  const uint16_t column[] = {0x40C0, 0xC0C0, 0x3E80, 0xBE80, 0x3F40, 0x3FA0, 0x3FE0, 0x4020,
                             0x4060, 0x40A0, 0x0000, 0x8000, 0x3E81, 0x3E7F, 0xBF80, 0x3DCC};
  Bytes elements(32 * 3 * 2);
  for (size_t row = 0; row < std::size(column); ++row) {
    StoreLe(elements.data() + row * 6, column[row]);
  }
  StoreLe<uint16_t>(elements.data() + 4, 0x40C1);
  const auto quantised = [&elements](std::string_view id) {
    const TileGrid grid = TileGrid::Create(ParseRecipe(id).value(), {32, 3}).value();
    return Run(ActiveInstructionSet(), grid, elements);
  };
  const auto first = [](const Quantised& made, size_t begin, size_t count) {
    std::vector<int> found;
    for (size_t i = begin; i < begin + count; ++i) found.push_back(static_cast<int>(made.codes[i]));
    return found;
  };
  const Quantised triton = quantised("mxfp4-gpt-oss/triton-kernels");
  REQUIRE(triton.scales == Bytes{std::byte{127}, std::byte{0}, std::byte{128}});
  REQUIRE(first(triton, 0, 9) ==
          std::vector<int>{0xF7, 0x91, 0x32, 0x54, 0x76, 0x80, 0x01, 0x0A, 0x00});
  REQUIRE(first(triton, 16, 2) == std::vector<int>{0x00, 0x00});
  REQUIRE(first(triton, 32, 1) == std::vector<int>{0x05});
  const Quantised modelopt = quantised("mxfp4-gpt-oss/modelopt");
  REQUIRE(modelopt.scales == triton.scales);
  REQUIRE(first(modelopt, 0, 9) ==
          std::vector<int>{0xF7, 0x80, 0x21, 0x43, 0x65, 0x88, 0x01, 0x0A, 0x88});
  REQUIRE(first(modelopt, 16, 2) == std::vector<int>{0x88, 0x88});
}

TEST_CASE("shapes are rows and columns of each matrix", "[quantise]") {
  Bytes shapes(16);
  WriteShapes({.matrices = 2, .rows = 7168, .columns = 2048}, shapes);
  REQUIRE(LoadLe<std::array<int32_t, 4>>(shapes.data()) ==
          std::array<int32_t, 4>{7168, 2048, 7168, 2048});
}

}  // namespace dws::quantise
