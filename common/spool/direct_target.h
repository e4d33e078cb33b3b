// A target for full tensors instead of a spool: live memory of an engine that has not been released
// with any version, so that there is no old version to keep. weights/direct_write.h implements it.
#pragma once

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/block_range.h"
#include "common/model/weight_version.h"

namespace dws {

// Threads: safe from any, for different blocks.
class DirectTarget {
 public:
  virtual ~DirectTarget() = default;

  // Writes whole blocks of a slice that is held, to all of its places. They are written when this
  // returns; writing the same blocks again replaces them. `bytes` must not change meanwhile.
  // INTERNAL, RESOURCE_EXHAUSTED: a device fails.
  virtual Status Write(TrainerRank rank, const BlockRange& blocks, ByteSpan bytes) = 0;
};

}  // namespace dws
