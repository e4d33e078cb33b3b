// What memory of the host answers to what is only asked of GPUs.
#include "receiver_daemon/weights/memory_backend.h"

namespace dws {

Result<std::vector<uint8_t>> MemoryBackend::WriteLent(const RankLayout&, TrainerRank,
                                                      std::span<const LentSlice>) {
  return UnimplementedError("memory of the host takes nothing from GPUs");
}

Result<MemoryBackend::Lent> MemoryBackend::StageLent(const RankLayout&, TrainerRank,
                                                     std::span<const LentSlice>, StagingBudget&) {
  return UnimplementedError("memory of the host takes nothing from GPUs");
}

}  // namespace dws
