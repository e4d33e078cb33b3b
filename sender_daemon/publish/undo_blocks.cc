// Finds the blocks of a frame together, so each frame is parsed once.
#include "sender_daemon/publish/undo_blocks.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/delta/decoder.h"
#include "common/model/limits.h"

namespace dws {

Status UndoBlocks(const RetainedVersion& version, const RankLayout& layout, RankSlice slice,
                  uint32_t first_block, uint32_t block_count, MutableByteSpan blocks,
                  UndoScratch& scratch) {
  const RankLayout::SliceEntry& entry = layout.slice(slice);
  const size_t element_bytes = ElementBytes(entry.dtype);
  DWS_CHECK(version.base.has_value());
  DWS_CHECK(first_block <= entry.blocks && block_count <= entry.blocks - first_block);
  const uint64_t begin = uint64_t{first_block} * limits::kBlockElements;
  const uint64_t end = begin + uint64_t{block_count} * limits::kBlockElements;
  DWS_CHECK(blocks.size() ==
            (std::min(end, entry.elements) - std::min(begin, entry.elements)) * element_bytes);
  DWS_RETURN_IF_ERROR(FindBlocks(version.link(), slice, first_block, block_count, scratch.found));
  DWS_CHECK(scratch.found.views.size() == block_count);
  for (uint32_t i = 0; i < block_count; ++i) {
    const uint32_t elements = BlockElements(entry.elements, first_block + i);
    DWS_RETURN_IF_ERROR(
        RevertBlock(entry.dtype, scratch.found.views[i],
                    blocks.subspan(size_t{i} * limits::kBlockElements * element_bytes,
                                   elements * element_bytes),
                    scratch.decoded));
  }
  return OkStatus();
}

}  // namespace dws
