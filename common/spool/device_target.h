// A target for full tensors that lie in GPU memory which another process of this host lends: they
// are copied from device to device. weights/lent_copy.h and weights/direct_write.h implement it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/memory/cuda/ipc/lent_memory.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/weight_version.h"

namespace dws {

// A whole slice, in slice order, at a multiple of 64 bytes of lent memory that holds all of it. Its
// owner may change it at any time.
struct LentSlice {
  RankSlice slice;
  cuda::LentMemory* memory = nullptr;
  uint64_t offset_bytes = 0;
  Digest expected;  // of its bytes, if they are those of the wanted version
};

// Threads: safe from any, for different trainer ranks.
class DeviceTarget {
 public:
  virtual ~DeviceTarget() = default;

  // Returns whether the slice is held, and only in GPU memory.
  virtual bool Takes(TrainerRank rank, RankSlice slice) const = 0;

  // Copies slices, all of which it takes. Returns for each whether all that arrived was proved, on
  // the device, to be as expected; if not, it is not kept, or live memory has to be written again.
  // Errors of LentMemory (DEADLINE_EXCEEDED: the loan ended meanwhile); RESOURCE_EXHAUSTED,
  // INTERNAL: a device has no room, or fails. After an error nothing is kept.
  virtual Result<std::vector<uint8_t>> Copy(TrainerRank rank,
                                            std::span<const LentSlice> slices) = 0;
};

}  // namespace dws
