// A frame in a spool, with everything that is needed to read it.
#pragma once

#include <cstdint>
#include <optional>

#include "common/model/class_table.h"
#include "common/model/delta_manifest.h"
#include "common/model/digest/digest.h"

namespace dws {

// A frame and its place in the spool.
struct SpooledFrame {
  RankSlice slice;
  FrameEntry entry;  // its offset is not used
  uint64_t spool_offset = 0;
  std::optional<ClassTable> classes;  // of the slice's class-split blocks
  // If set, this is a raw frame: only the blocks' contents, one after the other, without index or
  // checksum. This is the digest of the bytes as they arrived; the slice's digest proves them.
  std::optional<Digest> arrived;
};

}  // namespace dws
