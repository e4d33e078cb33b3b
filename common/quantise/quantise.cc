// Checks sizes, sets the floating-point mode and hands runs of tiles to the kernels, which are in
// other files: the compiler cannot move their arithmetic out of the mode.
#include "common/quantise/quantise.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/float_environment.h"

namespace dws::quantise {
namespace {

constexpr uint64_t kElementBytes = 2;

}  // namespace

uint16_t AbsMax(InstructionSet set, ByteSpan elements) {
  DWS_CHECK(elements.size() % kElementBytes == 0);
  return kernels::AbsMax(set, elements.data(), elements.size() / kElementBytes);
}

std::vector<uint16_t> MatrixAmax(InstructionSet set, const TileGrid& grid, ByteSpan elements) {
  const MatrixShape& shape = grid.shape();
  DWS_CHECK(elements.size() == shape.elements() * kElementBytes);
  std::vector<uint16_t> result(shape.matrices);
  const uint64_t bytes = shape.rows * shape.columns * kElementBytes;
  for (uint64_t matrix = 0; matrix < shape.matrices; ++matrix) {
    result[matrix] = AbsMax(set, elements.subspan(matrix * bytes, bytes));
  }
  return result;
}

void Quantise(InstructionSet set, const TileGrid& grid, ByteSpan elements,
              std::span<const uint16_t> tensor_amax, std::span<const TileRun> tiles,
              const Destination& to) {
  const MatrixShape& shape = grid.shape();
  DWS_CHECK(elements.size() == shape.elements() * kElementBytes);
  DWS_CHECK(to.codes.size() == grid.codes_bytes());
  DWS_CHECK(to.scales.size() == grid.scales_bytes());
  DWS_CHECK(to.amax.empty() || (to.amax.size() == grid.tile_count() &&
                                TilesOf(grid.recipe().rule) != Tiles::kElements));
  DWS_CHECK(tensor_amax.size() == (grid.recipe().has_tensor_scale ? shape.matrices : 0));
  kernels::TileJob job{.source = elements.data(),
                       .rows = shape.rows,
                       .columns = shape.columns,
                       .tile_rows = grid.tile_rows(),
                       .tile_columns = grid.tile_columns(),
                       .tensor_amax = tensor_amax.empty() ? nullptr : tensor_amax.data(),
                       .codes = to.codes.data(),
                       .scales = to.scales.data(),
                       .amax = to.amax.empty() ? nullptr : to.amax.data()};
  const DefaultFloatEnvironment environment;
  for (const TileRun& run : tiles) {
    DWS_CHECK(run.first <= grid.tile_count() && run.count <= grid.tile_count() - run.first);
    job.first = run.first;
    job.count = run.count;
    kernels::QuantiseTiles(set, grid.recipe().rule, job);
  }
}

void QuantiseElements(InstructionSet set, const Recipe& recipe, ByteSpan elements,
                      std::span<const uint16_t> tile_amax, std::span<const uint16_t> tensor_amax,
                      MutableByteSpan codes) {
  DWS_CHECK(tensor_amax.size() == (recipe.has_tensor_scale ? codes.size() : 0));
  DWS_CHECK(elements.size() == codes.size() * kElementBytes && tile_amax.size() == codes.size());
  const DefaultFloatEnvironment environment;
  kernels::QuantiseElements(set, recipe.rule,
                            {.elements = elements.data(),
                             .amax = tile_amax.data(),
                             .tensor_amax = tensor_amax.data(),
                             .count = codes.size(),
                             .codes = codes.data()});
}

uint16_t TileAmax(InstructionSet set, const TileGrid& grid, ByteSpan elements, uint64_t tile) {
  DWS_CHECK(elements.size() == grid.shape().elements() * kElementBytes);
  const TileArea area = grid.AreaOf(tile);
  uint16_t amax = 0;
  for (uint64_t row = 0; row < area.rows; ++row) {
    const uint64_t begin = area.begin + row * area.stride;
    amax = std::max(
        amax, AbsMax(set, elements.subspan(begin * kElementBytes, area.columns * kElementBytes)));
  }
  return amax;
}

TileScale ScaleOf(const Recipe& recipe, uint16_t tile_amax, uint16_t tensor_amax) {
  const DefaultFloatEnvironment environment;
  return kernels::TileScaleOf(recipe.rule, tile_amax, tensor_amax);
}

void WriteTensorScales(const Recipe& recipe, std::span<const uint16_t> tensor_amax,
                       MutableByteSpan to) {
  const OutputKind* const output = recipe.Find(Role::kTensorScale);
  DWS_CHECK(output != nullptr);
  const uint32_t bytes = ElementBytes(output->dtype);
  DWS_CHECK(to.size() == tensor_amax.size() * bytes);
  const DefaultFloatEnvironment environment;
  for (size_t matrix = 0; matrix < tensor_amax.size(); ++matrix) {
    const uint32_t bits = kernels::TensorScaleBits(recipe.rule, tensor_amax[matrix]);
    std::memcpy(to.data() + matrix * bytes, &bits, bytes);
  }
}

void WriteShapes(const MatrixShape& shape, MutableByteSpan to) {
  DWS_CHECK(to.size() == shape.matrices * 2 * sizeof(int32_t));
  for (uint64_t matrix = 0; matrix < shape.matrices; ++matrix) {
    StoreLe(to.data() + matrix * 8, static_cast<int32_t>(shape.rows));
    StoreLe(to.data() + matrix * 8 + 4, static_cast<int32_t>(shape.columns));
  }
}

}  // namespace dws::quantise
