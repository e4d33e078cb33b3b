#include "sender_daemon/publish/undo_blocks.h"

#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/model/limits.h"

namespace dws {

Status UndoBlocks(const RetainedVersion& version, const RankLayout& layout, RankSlice slice,
                  uint32_t first_block, uint32_t block_count, MutableByteSpan blocks,
                  UndoScratch& scratch) {
  const RankLayout::SliceEntry& entry = layout.slice(slice);
  const size_t element_bytes = ElementBytes(entry.dtype);
  // Exact: a step is a difference of ordinals, so subtracting it restores the bits before it.
  DWS_RETURN_IF_ERROR(FindBlocks(version.link(), slice, first_block, block_count, scratch.found));
  for (uint32_t i = 0; i < block_count; ++i) {
    if (scratch.found.views[i].mode == BlockMode::kEmpty) continue;
    const uint32_t elements = BlockElements(entry.elements, first_block + i);
    DWS_RETURN_IF_ERROR(
        DecodeBlock(entry.dtype, elements, scratch.found.views[i], scratch.decoded));
    UndoBlock(entry.dtype, scratch.decoded,
              blocks.subspan(size_t{i} * limits::kBlockElements * element_bytes,
                             elements * element_bytes));
  }
  return OkStatus();
}

}  // namespace dws
