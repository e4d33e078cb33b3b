// Functions that staging and applying in place share: they return a frame's blocks, and the old
// bytes of a block.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/memory/segment_map.h"
#include "common/model/layout.h"
#include "common/spool/spool.h"
#include "common/spool/spooled_frame.h"

namespace dws {

// Returns the blocks of a frame, checked against its checksum and the slice's number of blocks (a
// raw frame was checked as it arrived). They are views of `buffer` or of the spool. DATA_LOSS: the
// frame is damaged. Other errors as Spool::Read.
Result<std::vector<EncodedBlockView>> ReadBlocks(const RankLayout::SliceEntry& slice,
                                                 const SpooledFrame& frame, const Spool& spool,
                                                 std::vector<std::byte>& buffer);

// Returns the bytes of `block` at a place, in slice order: a view of the place if the block is
// contiguous there, else gathered into `buffer`.
ByteSpan OldBlock(const RankLayout::SliceEntry& slice, const SegmentMap& place, uint32_t block,
                  std::vector<std::byte>& buffer);

// Decodes a block of `slice`. A class-split block is decoded against the old bytes at `base`
// (nullptr: DATA_LOSS for such a block); `buffer` as for OldBlock. Errors as DecodeBlock.
Status DecodeAgainst(const RankLayout::SliceEntry& slice, const SpooledFrame& frame,
                     const SegmentMap* base, uint32_t block, const EncodedBlockView& view,
                     DecodedBlock& decoded, std::vector<std::byte>& buffer);

// Buffers that one worker reuses from frame to frame.
struct BlockScratch {
  std::vector<std::byte> frame;
  std::vector<std::byte> block;
  DecodedBlock decoded;
};

// Calls visit(block number, decoded) for each block of a frame. `base` holds the old elements that
// class-split blocks need. Errors as ReadBlocks and DecodeBlock, and those of `visit`.
Status ForEachBlock(const RankLayout::SliceEntry& slice, const SpooledFrame& frame,
                    const Spool& spool, const SegmentMap* base, BlockScratch& scratch,
                    const std::function<Status(uint32_t, const DecodedBlock&)>& visit);

}  // namespace dws
