// A frame in a spool, with everything that is needed to read it.
#pragma once

#include <cstdint>
#include <optional>

#include "common/model/class_table.h"
#include "common/model/delta_manifest.h"

namespace dws {

// A frame of full tensors and its place in the spool.
struct SpooledFrame {
  RankSlice slice;
  FrameEntry entry;  // its offset is not used
  uint64_t spool_offset = 0;
  std::optional<ClassTable> classes;  // of the slice's class-split blocks
};

}  // namespace dws
