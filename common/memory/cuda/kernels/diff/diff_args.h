// The arguments of dws_diff and dws_diff_list, as kernel_args.h describes those of the others.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/kernel_args.h"

namespace dws::cuda {

// dws_diff: compares live blocks with a snapshot (canonical bytes, on the device or in pinned host
// memory) and lists what changed. If `update` is not 0, the snapshot is changed to the live state
// that was read. Every byte of both is loaded once (a changed one of the snapshot is stored once):
// changes, digest and snapshot agree even if the live bytes' owner writes meanwhile.
//
// One warp for each segment: up to kDiffSegmentWords words of a block. The number of changes of a
// block is known only after all its segments were read. So each warp first writes its segment's
// changes to a log, and the warp that finishes the last segment of a block reserves the block's
// part of the arena.
//
// dws_diff_list must follow in the same stream, with the same arguments and segments: it copies the
// changes from the log to the arena, and to the snapshot. For each block the arena gets `changes`
// positions (u16, ascending, padded to a multiple of 8 bytes), then as many old values, then new
// values (both packed, each padded to a multiple of 8).
//
// If the arena or the log has no room for a block, or more than `dense_above` of its elements
// change, its `listed` is 0. Then nothing of it is updated or counted in the digest, `changes` is
// 0, and the caller copies the whole block.
inline constexpr uint32_t kDiffSegmentWords = 2048;
inline constexpr uint32_t DiffSegments(uint64_t elements, uint64_t element_bytes) {
  constexpr uint64_t kSegmentBytes = uint64_t{kDiffSegmentWords} * 8;
  return static_cast<uint32_t>((elements * element_bytes + kSegmentBytes - 1) / kSegmentBytes);
}

struct DiffBlock {
  uint64_t snapshot = 0;  // address of the block's bytes; a multiple of 8
  uint64_t first_element = 0;
  uint64_t first_word = 0;
  uint32_t elements = 0;
  uint32_t place = 0;
  uint32_t first_segment = 0;  // in segments; DiffSegments() of them are the block's
  Element element;
};

struct DiffResult {
  KernelDigest difference;
  uint64_t at = 0;  // offset of its changes in the arena; a multiple of 8
  uint32_t changes = 0;
  uint32_t listed = 0;
};

struct DiffArgs {
  uint64_t blocks = 0;    // DiffBlock[block_count]
  uint64_t segments = 0;  // uint32_t[segment_count]: the block of each
  uint64_t places = 0;    // Place[]
  uint64_t results = 0;   // DiffResult[block_count]; all of it is written by the two kernels
  uint64_t arena = 0;
  uint64_t arena_bytes = 0;
  // Address of a u64, zero at the start: the bytes that warps asked for. More than arena_bytes:
  // some blocks got none.
  uint64_t arena_used = 0;
  // Memory for intermediate results, a multiple of 8: DiffWorkBytes(), and the rest is the log. The
  // first DiffZeroBytes() are zero at the start.
  uint64_t work = 0;
  uint64_t work_bytes = 0;
  uint32_t block_count = 0;
  uint32_t segment_count = 0;
  uint32_t dense_above = 0;
  uint32_t update = 0;
};

// What `work` has before the log: the bytes of the log that warps asked for (u64), then for each
// block a u64 (low half: changes that warps found so far; high half: segments that are finished),
// then DiffFound[segment_count].
//
// Changes in the log, at the offset `at` from its start: a DiffPiece, namely the segment's changes
// before these, then positions and values as in the arena. Without changes: none.
struct DiffPiece {
  uint64_t at = 0;
  uint32_t changes = 0;
  uint32_t unused = 0;
};
struct DiffFound {
  KernelDigest difference;
  DiffPiece last;        // of the segment
  uint32_t changes = 0;  // of all its pieces
  uint32_t unused = 0;
};
inline constexpr uint64_t DiffZeroBytes(uint64_t block_count) {
  return sizeof(uint64_t) + block_count * sizeof(uint64_t);
}
inline constexpr uint64_t DiffWorkBytes(uint64_t block_count, uint64_t segment_count) {
  return DiffZeroBytes(block_count) + segment_count * sizeof(DiffFound);
}

// The bytes of `changes` changes in the arena.
inline constexpr uint64_t ListedBytes(uint64_t changes, uint64_t element_bytes) {
  return StagedPositionsBytes(changes) + (changes * element_bytes + 7) / 8 * 16;
}

}  // namespace dws::cuda
