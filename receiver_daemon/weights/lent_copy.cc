// A slice that arrived at one of two GPUs only is not taken; other sources bring it to both, after
// what is staged of it was written.
#include "receiver_daemon/weights/lent_copy.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "common/transport/same_host/gpu_copy_places.h"

namespace dws {

bool LentCopy::HasRoom(TrainerRank rank, std::span<const RankSlice> slices) const {
  const RankLayout& layout = weights_.layouts().rank(rank);
  uint64_t bytes = 0;
  for (const auto& memory : weights_.memory()) {
    if (!memory->on_device()) continue;
    std::vector<RankSlice> here;
    std::ranges::copy_if(slices, std::back_inserter(here),
                         [&](RankSlice slice) { return memory->PlaceCount(rank, slice) > 0; });
    bytes += GpuCopyPlaces(layout, here).size_bytes;
  }
  return bytes <= bytes_max_;
}

Result<std::vector<uint8_t>> LentCopy::Copy(TrainerRank rank, std::span<const LentSlice> slices) {
  std::vector<uint8_t> arrived(slices.size(), 1);
  StagedParts parts;  // devices are the first memories
  for (const auto& memory : weights_.memory()) {
    if (!memory->on_device()) break;
    DWS_ASSIGN_OR_RETURN(MemoryBackend::Lent lent,
                         memory->StageLent(weights_.layouts().rank(rank), rank, slices, budget_));
    parts.push_back(std::move(lent.staged));
    for (size_t i = 0; i < lent.arrived.size(); ++i) arrived[i] &= lent.arrived[i];
  }
  staged_.push_back(std::move(parts));
  return arrived;
}

}  // namespace dws
