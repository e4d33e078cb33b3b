#include "sender_daemon/capture/class_tables.h"

#include "common/base/check.h"
#include "common/delta/blocks/class_statistics.h"
#include "common/delta/decoder.h"
#include "sender_daemon/capture/snapshot.h"

namespace dws {
namespace {

constexpr uint64_t kLearnEvery = 8;  // versions
constexpr uint64_t kSampleOf = 8;    // samples one in so many blocks, in slices of at least as many

std::optional<ClassTable> LearnSlice(Snapshot& snapshot, RankSlice number,
                                     std::span<const EncodedBlock> blocks, WeightVersion version) {
  const RankLayout::SliceEntry& slice = snapshot.layout().slice(number);
  const uint64_t stride = slice.blocks < kSampleOf ? 1 : kSampleOf;
  std::optional<ClassStatistics> statistics;  // large: only for slices that changed
  DecodedBlock steps;
  for (uint64_t b = version.value() % stride; b < slice.blocks; b += stride) {
    const EncodedBlock& block = blocks[slice.first_block + b];
    if (block.mode == BlockMode::kEmpty) continue;
    const auto block_number = static_cast<uint32_t>(b);
    // We encoded it a moment ago: a decoding error is our own bug.
    DWS_CHECK(
        DecodeBlock(slice.dtype, BlockElements(slice.elements, block_number), ViewOf(block), steps)
            .ok());
    if (!statistics.has_value()) statistics.emplace();
    statistics->Add(slice.dtype, steps, snapshot.BlockBytes(number, block_number));
  }
  if (!statistics.has_value()) return std::nullopt;
  return ChooseClassTable(slice.dtype, *statistics, CeilDiv(slice.blocks, stride));
}

}  // namespace

void ClassTables::Learn(Snapshot& snapshot, std::span<const EncodedBlock> blocks,
                        WeightVersion version, ThreadPool& pool) {
  DWS_CHECK(blocks.size() == snapshot.layout().block_count());
  DWS_CHECK(tables_.size() == snapshot.layout().slice_count());
  std::vector<uint32_t> due;
  for (uint32_t s = 0; s < tables_.size(); ++s) {
    const DType dtype = snapshot.layout().slice(RankSlice(s)).dtype;
    if (MappingOf(dtype) != Mapping::kFloat) continue;
    if (!tables_[s].has_value() || (s + version.value()) % kLearnEvery == 0) due.push_back(s);
  }
  pool.ParallelFor(due.size(), [&](size_t index, size_t /*worker*/) {
    const uint32_t slice = due[index];
    auto learnt = LearnSlice(snapshot, RankSlice(slice), blocks, version);
    if (learnt.has_value()) tables_[slice] = *learnt;
  });
}

}  // namespace dws
