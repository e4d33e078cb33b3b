#include "tools/gpu_check/sections/encoded_unit.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/blocks/class_statistics.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/encoder.h"
#include "common/model/limits.h"
#include "tools/bench/measure/synthetic.h"

namespace dws::gpu_check {
namespace {

constexpr DType kDType = DType::kBF16;
constexpr uint64_t kElementBytes = 2;
constexpr uint64_t kBlockBytes = uint64_t{limits::kBlockElements} * kElementBytes;
constexpr uint64_t kSectorElements = 32 / kElementBytes;

ByteSpan BlockOf(const std::vector<std::byte>& unit, size_t block) {
  return ByteSpan(unit).subspan(block * kBlockBytes, kBlockBytes);
}

uint64_t SectorsOf(std::span<const uint16_t> positions) {
  uint64_t sectors = 0;
  uint64_t last = ~uint64_t{0};
  for (const uint16_t position : positions) {
    const uint64_t sector = position / kSectorElements;
    sectors += sector != last ? 1 : 0;
    last = sector;
  }
  return sectors;
}

// The class table for such changes. Changes at uniform positions suggest no table, so any table of
// two classes is good enough.
ClassTable TableOf(const EncodedUnit& unit, std::span<const BlockChanges> changes) {
  ClassStatistics statistics;
  DecodedBlock steps{.kind = DecodedBlock::Kind::kSteps};
  for (size_t b = 0; b < changes.size(); ++b) {
    steps.positions = changes[b].positions;
    steps.values = changes[b].steps;
    statistics.Add(kDType, steps, BlockOf(unit.after, b));
  }
  std::optional<ClassTable> table = ChooseClassTable(kDType, statistics, changes.size());
  if (table.has_value() && TableFits(*table, kDType)) return *table;
  return {.thresholds = {120}, .threshold_count = 1};
}

EncodedBlock Split(const BlockChanges& changes, ByteSpan before, const ClassTable& table,
                   EncodeScratch& scratch) {
  PlanSplitRice(kDType, changes, scratch.split_rice);
  PlanClassSplit(kDType, changes, scratch.split_rice, before, table, scratch.class_split);
  return WriteClassSplit(changes, scratch.split_rice, scratch.class_split);
}

}  // namespace

EncodedUnit MakeUnit(uint64_t elements, double density, DeltaMode mode, ThreadPool& pool) {
  DWS_CHECK(elements > 0 && elements % limits::kBlockElements == 0);
  EncodedUnit unit;
  bench::Versions versions = bench::MakeBf16(elements, density);
  unit.before = std::move(versions.before);
  unit.after = std::move(versions.after);
  unit.blocks.resize(elements / limits::kBlockElements);

  std::vector<BlockChanges> changes(unit.blocks.size());
  std::vector<Digest> differences(unit.blocks.size());
  pool.ParallelFor(unit.blocks.size(), [&](size_t b, size_t) {
    differences[b] = DiffBlock(kDType, BlockOf(unit.before, b), BlockOf(unit.after, b),
                               b * kBlockBytes / 8, changes[b]);
  });
  const ClassTable table = TableOf(unit, changes);
  unit.table = {.hot_below = table.hot_below,
                .hot_scale = table.hot_scale,
                .threshold_count = table.threshold_count};
  std::copy(table.thresholds.begin(), table.thresholds.end(), unit.table.thresholds);

  std::vector<EncodeScratch> scratch(pool.worker_count());
  pool.ParallelFor(unit.blocks.size(), [&](size_t b, size_t worker) {
    if (changes[b].size() == 0) return;
    unit.blocks[b] = mode == DeltaMode::kB
                         ? Split(changes[b], BlockOf(unit.before, b), table, scratch[worker])
                         : EncodeSteps(kDType, changes[b], limits::kBlockElements, scratch[worker]);
  });
  for (size_t b = 0; b < unit.blocks.size(); ++b) {
    const EncodedBlock& block = unit.blocks[b];
    unit.difference += differences[b];
    unit.changes += changes[b].size();
    unit.touched_sectors += SectorsOf(changes[b].positions);
    unit.encoded_bytes += block.payload.size();
    if (block.mode == BlockMode::kEmpty) continue;
    unit.staged_bytes += cuda::StagedBytes(static_cast<uint8_t>(block.mode), block.nnz,
                                           limits::kBlockElements, kElementBytes);
  }
  return unit;
}

std::vector<cuda::StageItem> ItemsOf(const EncodedUnit& unit, uint32_t copies) {
  std::vector<cuda::StageItem> items;
  items.reserve(unit.blocks.size() * copies);
  for (uint32_t copy = 0; copy < copies; ++copy) {
    for (size_t b = 0; b < unit.blocks.size(); ++b) {
      const EncodedBlock& block = unit.blocks[b];
      if (block.mode == BlockMode::kEmpty) continue;
      items.push_back({.block = {.first_element = b * limits::kBlockElements,
                                 .first_word = b * kBlockBytes / 8,
                                 .elements = limits::kBlockElements,
                                 .nnz = block.nnz,
                                 .place = copy,
                                 .result = copy,
                                 .parameters = block.parameters,
                                 .mode = static_cast<uint8_t>(block.mode),
                                 .element = {.bytes = kElementBytes, .is_float = 1}},
                       .payload = block.payload,
                       .table = &unit.table,
                       .group = 0});
    }
  }
  return items;
}

}  // namespace dws::gpu_check
