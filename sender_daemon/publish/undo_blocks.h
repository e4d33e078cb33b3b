// Takes the steps of one retained version back: from the blocks as they were after it to those
// before it. Used where exact older states are made of a snapshot that has moved on.
#pragma once

#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/objects/delta_link.h"
#include "common/model/layout.h"
#include "sender_daemon/publish/retained_version.h"

namespace dws {

// Reused from call to call.
struct UndoScratch {
  LinkBlocks found;
  DecodedBlock decoded;
};

// `blocks`: the bytes of the blocks [first_block, first_block + block_count) of the slice, one
// after the other, as of `version`; afterwards as of its base, which it has. DATA_LOSS: our own
// memory is damaged.
Status UndoBlocks(const RetainedVersion& version, const RankLayout& layout, RankSlice slice,
                  uint32_t first_block, uint32_t block_count, MutableByteSpan blocks,
                  UndoScratch& scratch);

}  // namespace dws
