// The arguments of the kernels: plain data with the same layout on host and device. Addresses are
// numbers in the unified address space, valid on the device.
//
// Every kernel takes one struct by value and runs on a one-dimensional grid of any size: its warps
// take work items in turn until none is left. Results are sums and counts, so the order of the
// items does not matter.
#pragma once

#include <cstdint>

namespace dws::cuda {

// Threads of a thread block in every launch: kWarpsPerBlock warps.
inline constexpr uint32_t kBlockThreads = 128;
inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kWarpsPerBlock = kBlockThreads / kWarpLanes;

// The place of one slice (StridedRuns, common/model/tensor_spec.h): element e of the slice is at
// base + (e / run_elements * stride_elements + e % run_elements) * element bytes.
struct Place {
  uint64_t base = 0;
  uint64_t run_elements = 0;  // at least 1
  uint64_t stride_elements = 0;
};

// The properties of an element type that the codec uses.
struct Element {
  uint8_t bytes = 1;  // 1, 2, 4 or 8
  uint8_t is_float = 0;
};

// FORMAT.md, class table: hot-below, hot-scale, thresholds.
struct KernelClassTable {
  uint8_t hot_below = 0;
  uint8_t hot_scale = 0;
  uint8_t threshold_count = 0;
  uint8_t thresholds[7] = {};
};

// The two lanes of a digest.
struct KernelDigest {
  uint64_t lane0 = 0;
  uint64_t lane1 = 0;
};

// dws_stage, and dws_stage_split for mode 3 (class-split): decode blocks against live memory, which
// they do not change, into staged entries, and add up how these change the digest. One warp works
// on each block.
//
// Staged entries of a block are at arena + staged. Sparse (modes 1, 2, 3): `nnz` positions inside
// the block (u16, ascending), padded to a multiple of 8 bytes, then `nnz` new values packed in the
// element's bytes. Dense (modes 4, 5): only the block's new values. StagedBytes() is the number of
// bytes that must exist at `staged`, a multiple of 8. No other block may use any of them, because
// they hold steps before they hold values. A damaged block leaves them without meaning, and writes
// to no other bytes.
struct StageBlock {
  uint64_t payload = 0;        // offset in payloads; any
  uint64_t staged = 0;         // offset in the arena; a multiple of 8
  uint64_t first_element = 0;  // of the block in its slice
  uint64_t first_word = 0;     // number of its first word in the tensor, for the digest
  uint32_t payload_bytes = 0;
  uint32_t elements = 0;  // of the block: 1 to 65,536
  uint32_t nnz = 0;       // 1 to elements
  uint32_t place = 0;     // in places
  uint32_t table = 0;     // in tables; mode 3 only
  uint32_t result = 0;    // in differences and failures
  uint16_t parameters = 0;
  uint8_t mode = 0;  // 1 to 5 (BlockMode); 6 is decompressed before, 0 needs no staging
  Element element;
};

struct StageArgs {
  uint64_t blocks = 0;    // StageBlock[block_count]
  uint64_t payloads = 0;  // a multiple of 8; 16 bytes after the last payload may be read
  uint64_t places = 0;    // Place[]
  uint64_t tables = 0;    // KernelClassTable[]
  uint64_t arena = 0;
  uint64_t differences = 0;  // KernelDigest[]: after minus before is added
  uint64_t failures = 0;     // uint32_t[]: 1 is added for each block whose payload is damaged
  // CommitBlock[block_count]: those of damaged blocks get 0 entries, so that a commit can follow
  // before the failures are read. 0: there are none.
  uint64_t commits = 0;
  uint32_t block_count = 0;
};

// The bytes that a block needs at `staged`.
inline constexpr uint64_t StagedPositionsBytes(uint64_t nnz) { return (nnz * 2 + 7) / 8 * 8; }
inline constexpr uint64_t StagedBytes(uint8_t mode, uint64_t nnz, uint64_t elements,
                                      uint64_t element_bytes) {
  const bool dense = mode == 4 || mode == 5;
  return dense ? (elements * element_bytes + 7) / 8 * 8
               : StagedPositionsBytes(nnz) + (nnz * element_bytes + 7) / 8 * 8;
}

// dws_commit: writes staged entries to live memory. One warp for each block.
struct CommitBlock {
  uint64_t staged = 0;
  uint64_t first_element = 0;
  uint32_t entries = 0;  // sparse: nnz; dense: elements of the block
  uint32_t place = 0;
  uint8_t element_bytes = 1;
  uint8_t dense = 0;
};

struct CommitArgs {
  uint64_t blocks = 0;  // CommitBlock[block_count]
  uint64_t places = 0;
  uint64_t arena = 0;
  uint32_t block_count = 0;
};

// dws_digest: the digest of live blocks, added up by result.
struct DigestBlock {
  uint64_t first_element = 0;
  uint64_t first_word = 0;
  uint32_t elements = 0;
  uint32_t place = 0;
  uint32_t result = 0;
  uint8_t element_bytes = 1;
};

struct DigestArgs {
  uint64_t blocks = 0;  // DigestBlock[block_count]
  uint64_t places = 0;
  uint64_t digests = 0;  // KernelDigest[]: the digests are added
  uint32_t block_count = 0;
};

// dws_diff and dws_diff_list: diff/diff_args.h. dws_quantise: quantise/quantise_args.h.

// dws_gather: copies live blocks, each to its target, in slice order. One warp for each block.
struct GatherBlock {
  uint64_t target = 0;  // a multiple of 8; whole words are written there, with zeros after the last
                        // element
  uint64_t first_element = 0;
  uint32_t elements = 0;
  uint32_t place = 0;
  uint8_t element_bytes = 1;
};

struct GatherArgs {
  uint64_t blocks = 0;  // GatherBlock[block_count]
  uint64_t places = 0;
  uint32_t block_count = 0;
};

// The kernels by number and name.
enum class Kernel : uint8_t {
  kStage,
  kStageSplit,
  kCommit,
  kDigest,
  kDiff,
  kDiffList,
  kGather,
  kQuantise
};
inline constexpr uint32_t kKernelCount = 8;
inline constexpr const char* kKernelNames[kKernelCount] = {
    "dws_stage", "dws_stage_split", "dws_commit", "dws_digest",
    "dws_diff",  "dws_diff_list",   "dws_gather", "dws_quantise"};

}  // namespace dws::cuda
