// Most blocks are contiguous in engine memory: they are read where they are, and copied only if
// they are strided.
#include "receiver_daemon/weights/block_source.h"

#include "common/base/check.h"
#include "common/delta/decoder.h"
#include "common/delta/objects/frame.h"
#include "common/model/limits.h"

namespace dws {

namespace {

// The contents of a raw frame, block by block.
Result<std::vector<EncodedBlockView>> RawBlocks(const RankLayout::SliceEntry& slice,
                                                const FrameEntry& entry, ByteSpan bytes) {
  const uint64_t element_bytes = ElementBytes(slice.dtype);
  std::vector<EncodedBlockView> blocks;
  for (uint32_t i = 0; i < entry.block_count; ++i) {
    const auto elements =
        static_cast<uint32_t>(BlockElements(slice.elements, entry.first_block + i));
    const uint64_t size = elements * element_bytes;
    DWS_CHECK(size <= bytes.size());  // the code that spooled it knew the layout
    blocks.push_back({.mode = BlockMode::kDenseRaw, .nnz = elements, .payload = bytes.first(size)});
    bytes = bytes.subspan(size);
  }
  DWS_CHECK(bytes.empty());
  return blocks;
}

}  // namespace

Result<std::vector<EncodedBlockView>> ReadBlocks(const RankLayout::SliceEntry& slice,
                                                 const SpooledFrame& frame, const Spool& spool,
                                                 std::vector<std::byte>& buffer) {
  DWS_ASSIGN_OR_RETURN(const ByteSpan bytes,
                       spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer));
  if (frame.arrived.has_value()) return RawBlocks(slice, frame.entry, bytes);
  DWS_ASSIGN_OR_RETURN(std::vector<EncodedBlockView> blocks, ParseFrame(bytes, frame.entry));
  if (frame.entry.first_block > slice.blocks ||
      blocks.size() > slice.blocks - frame.entry.first_block) {
    return DataLossError("a frame holds blocks {} + {} of a slice of {} blocks",
                         frame.entry.first_block, blocks.size(), slice.blocks);
  }
  return blocks;
}

ByteSpan OldBlock(const RankLayout::SliceEntry& slice, const SegmentMap& place, uint32_t block,
                  std::vector<std::byte>& buffer) {
  DWS_CHECK(place.element_count() == slice.elements);
  DWS_CHECK(place.element_bytes() == ElementBytes(slice.dtype));
  const uint64_t first = uint64_t{block} * limits::kBlockElements;
  const uint64_t count = BlockElements(slice.elements, block);
  const ByteSpan there = place.Contiguous(first, count);
  if (!there.empty()) return there;
  buffer.resize(count * place.element_bytes());
  place.Gather(first, buffer);
  return buffer;
}

Status DecodeAgainst(const RankLayout::SliceEntry& slice, const SpooledFrame& frame,
                     const SegmentMap* base, uint32_t block, const EncodedBlockView& view,
                     DecodedBlock& decoded, std::vector<std::byte>& buffer) {
  BlockBase needed;
  if (view.mode == BlockMode::kClassSplit && base != nullptr && frame.classes.has_value()) {
    needed = {.classes = &*frame.classes, .before = OldBlock(slice, *base, block, buffer)};
  }
  return DecodeBlock(slice.dtype, BlockElements(slice.elements, block), view, decoded, needed);
}

Status ForEachBlock(const RankLayout::SliceEntry& slice, const SpooledFrame& frame,
                    const Spool& spool, const SegmentMap* base, BlockScratch& scratch,
                    const std::function<Status(uint32_t, const DecodedBlock&)>& visit) {
  DWS_ASSIGN_OR_RETURN(const std::vector<EncodedBlockView> blocks,
                       ReadBlocks(slice, frame, spool, scratch.frame));
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const uint32_t block = frame.entry.first_block + i;
    DWS_RETURN_IF_ERROR(
        DecodeAgainst(slice, frame, base, block, blocks[i], scratch.decoded, scratch.block));
    DWS_RETURN_IF_ERROR(visit(block, scratch.decoded));
  }
  return OkStatus();
}

}  // namespace dws
