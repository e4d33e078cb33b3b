// Frames: consecutive encoded blocks of one slice under one checksum, with an index at the start so
// that any block can be found and decoded alone (FORMAT.md, "Frame").
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/objects/frame_header.h"
#include "common/model/delta_manifest.h"

namespace dws {

// The bytes of one frame. `blocks` is not empty. The caller keeps the result within
// limits::kFrameBytesMax, with FrameSize or BlocksOfNextFrame.
std::vector<std::byte> BuildFrame(std::span<const EncodedBlock> blocks);
uint64_t FrameSize(std::span<const EncodedBlock> blocks);

// Makes a frame in two steps, for callers that write the payloads in place: FrameSize gives the
// size, then WriteFrameIndex writes header and index at `frame`, which has room for the frame and
// kFrameSlackBytes more. Returns where the caller writes the payloads afterwards, one after the
// other. `rows` is not empty.
inline constexpr size_t kFrameSlackBytes = 8;
uint64_t FrameSize(std::span<const FrameRow> rows);
MutableByteSpan WriteFrameIndex(std::span<const FrameRow> rows, std::byte* frame);

// Returns how many of the first `blocks` go into the next frame: as many as fit
// limits::kFrameBytesMax, at least one, at most kFrameBlocksMax, and at most up to the first run of
// empty blocks that is worth leaving out. If it is more than one block, the last is not empty.
size_t BlocksOfNextFrame(std::span<const EncodedBlock> blocks);

uint64_t FrameChecksum(ByteSpan frame);

// Checks size and checksum against `entry` and reads the index. The views point into `frame`.
// DATA_LOSS: the frame is damaged; the message says where.
Result<std::vector<EncodedBlockView>> ParseFrame(ByteSpan frame, const FrameEntry& entry);

// Like ParseFrame, but does not check the manifest's checksum and size: reads the index of a frame
// that may be damaged.
Result<std::vector<EncodedBlockView>> ParseFrameBlocks(ByteSpan frame, uint32_t block_count);

}  // namespace dws
