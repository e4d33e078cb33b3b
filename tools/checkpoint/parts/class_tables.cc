// A sample of the blocks is enough, because a table holds frequencies; reading all of them costs
// about as much as packing them.
#include "tools/checkpoint/parts/class_tables.h"

#include <algorithm>

#include "common/delta/blocks/class_statistics.h"
#include "common/delta/blocks/diff.h"

namespace dws::checkpoint {
namespace {

constexpr uint32_t kSampleOf = 8;        // sample one block of 8; all blocks of smaller slices
constexpr uint32_t kSampledBlocks = 64;  // about as many of one slice
constexpr size_t kSlicesAtOnce = 256;    // between two progress calls

struct Scratch {
  BlockDiffer differ;
  BlockChanges changes;
  DecodedBlock steps;
};

Result<std::optional<ClassTable>> LearnSlice(const RankLayout& layout, RankSlice number,
                                             BlockSource& source, Scratch& scratch, size_t worker) {
  const RankLayout::SliceEntry& slice = layout.slice(number);
  const uint32_t stride =
      slice.blocks < kSampleOf ? 1 : std::max(kSampleOf, slice.blocks / kSampledBlocks);
  std::optional<ClassStatistics> statistics;  // large, so only made for slices that changed
  for (uint64_t b = 0; b < slice.blocks; b += stride) {
    DWS_ASSIGN_OR_RETURN(const BlockStates states,
                         source.Read(number, static_cast<uint32_t>(b), worker));
    if (states.before.data() == states.after.data()) continue;
    scratch.differ.Diff(slice.dtype, states.before, states.after, 0, scratch.changes);
    if (scratch.changes.size() == 0) continue;
    if (!statistics.has_value()) statistics.emplace();
    scratch.steps.kind = DecodedBlock::Kind::kSteps;
    scratch.steps.positions = scratch.changes.positions;
    scratch.steps.values = scratch.changes.steps;
    statistics->Add(slice.dtype, scratch.steps, states.after);
  }
  if (!statistics.has_value()) return std::optional<ClassTable>();
  return ChooseClassTable(slice.dtype, *statistics, CeilDiv(slice.blocks, stride));
}

}  // namespace

Result<ClassTables> LearnClassTables(const Walk& walk, BlockSource& source) {
  ClassTables tables(walk.layout.slice_count());
  std::vector<RankSlice> floats;
  for (const RankSlice slice : AllSlices(walk.layout)) {
    const bool is_float = MappingOf(walk.layout.slice(slice).dtype) == Mapping::kFloat;
    if (is_float && source.IsReady(slice)) floats.push_back(slice);
  }
  std::vector<Scratch> scratch(walk.pool.worker_count());
  for (size_t begin = 0; begin < floats.size(); begin += kSlicesAtOnce) {
    DWS_RETURN_IF_ERROR(walk.progress({.step = "sampling weights"}));
    const size_t count = std::min(kSlicesAtOnce, floats.size() - begin);
    std::vector<Status> failed(count);
    walk.pool.ParallelFor(count, [&](size_t index, size_t worker) {
      const RankSlice slice = floats[begin + index];
      auto learnt = LearnSlice(walk.layout, slice, source, scratch[worker], worker);
      if (learnt.ok()) tables[slice.value()] = *learnt;
      failed[index] = learnt.status();
    });
    for (const Status& status : failed) DWS_RETURN_IF_ERROR(status);
  }
  return tables;
}

}  // namespace dws::checkpoint
