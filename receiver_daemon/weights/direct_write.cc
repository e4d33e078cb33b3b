// A slice counts as touched before its first byte is written, so that an error leaves none out.
#include "receiver_daemon/weights/direct_write.h"

namespace dws {

Status DirectWrite::Write(TrainerRank rank, const BlockRange& blocks, ByteSpan bytes) {
  {
    MutexLock lock(mutex_);
    touched_.insert({.rank = rank, .slice = blocks.slice});
  }
  for (const auto& memory : weights_.memory()) {
    DWS_RETURN_IF_ERROR(memory->WriteFull(weights_.layouts().rank(rank), rank, blocks, bytes));
  }
  return OkStatus();
}

Result<std::vector<uint8_t>> DirectWrite::Copy(TrainerRank rank,
                                               std::span<const LentSlice> slices) {
  {
    MutexLock lock(mutex_);
    for (const LentSlice& slice : slices) touched_.insert({.rank = rank, .slice = slice.slice});
  }
  std::vector<uint8_t> arrived(slices.size(), 1);
  for (const auto& memory : weights_.memory()) {
    if (!memory->on_device()) continue;
    DWS_ASSIGN_OR_RETURN(const std::vector<uint8_t> here,
                         memory->WriteLent(weights_.layouts().rank(rank), rank, slices));
    for (size_t i = 0; i < here.size(); ++i) arrived[i] &= here[i];
  }
  return arrived;
}

std::set<OwnedSlice> DirectWrite::touched() const {
  MutexLock lock(mutex_);
  return touched_;
}

}  // namespace dws
