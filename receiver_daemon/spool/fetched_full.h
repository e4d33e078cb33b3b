// Full tensors in a spool.
#pragma once

#include <span>
#include <vector>

#include "common/model/layout.h"
#include "receiver_daemon/spool/spool.h"
#include "receiver_daemon/spool/spooled_frame.h"

namespace dws {

// What is wanted in full, of one trainer rank. Refers to objects that its maker owns.
struct FullWant {
  const RankLayout& layout;
  std::span<const RankSlice> slices;  // ascending, not empty
  // The digest of every slice of the layout at the wanted version: what proves that they arrived.
  std::span<const Digest> expected;
};

// A plain value; its frames refer to bytes of the spool by offset.
struct FetchedFull {
  Spool spool;
  std::vector<SpooledFrame> frames;  // by slice, in the order asked for, and in it by block
};

}  // namespace dws
