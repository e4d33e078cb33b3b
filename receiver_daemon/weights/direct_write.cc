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

std::set<OwnedSlice> DirectWrite::touched() const {
  MutexLock lock(mutex_);
  return touched_;
}

}  // namespace dws
