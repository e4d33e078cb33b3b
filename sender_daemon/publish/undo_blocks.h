// Undoes the steps of one retained version: turns blocks of that version into blocks of the version
// before. Used to make exact older states from a snapshot that has moved on.
#pragma once

#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/objects/delta_link.h"
#include "common/model/layout.h"
#include "sender_daemon/publish/retained_version.h"

namespace dws {

// Memory that is reused from call to call.
struct UndoScratch {
  LinkBlocks found;
  DecodedBlock decoded;
};

// `blocks`: the bytes of the blocks [first_block, first_block + block_count) of the slice, one
// after the other, in the state of `version`; on return they are in the state of its base, which it
// must have. DATA_LOSS: our own memory is damaged.
Status UndoBlocks(const RetainedVersion& version, const RankLayout& layout, RankSlice slice,
                  uint32_t first_block, uint32_t block_count, MutableByteSpan blocks,
                  UndoScratch& scratch);

}  // namespace dws
