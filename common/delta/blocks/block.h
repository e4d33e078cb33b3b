// The values the codec works on: the changes of one block, and one encoded block. Plain data.
//
// A block is at most limits::kBlockElements consecutive elements of one slice in slice order;
// positions are element numbers inside the block. FORMAT.md specifies the modes byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"

namespace dws {

enum class BlockMode : uint8_t {
  kEmpty = 0,
  kRaw = 1,         // positions and absolute new values
  kSplitRice = 2,   // mode A: gaps in two planes, steps of +-1 as a sign plane, exceptions
  kClassSplit = 3,  // mode B: ranks inside classes of the old magnitude
  kDenseUlp = 4,    // a step for each element
  kDenseRaw = 5,    // all new values
  kDenseZstd = 6,   // all new values, compressed
};

inline constexpr size_t kBlockModes = 7;

// True for the modes that carry steps and so need exactly their base.
constexpr bool IsRelative(BlockMode mode) {
  return mode == BlockMode::kSplitRice || mode == BlockMode::kClassSplit ||
         mode == BlockMode::kDenseUlp;
}

// The changes of one block as steps: differences of ordinals, new minus old, modulo 2^(8 * element
// bytes). Parallel arrays, positions strictly ascending, no step is zero.
struct BlockChanges {
  std::vector<uint16_t> positions;
  std::vector<uint64_t> steps;

  size_t size() const { return positions.size(); }
  void clear() {
    positions.clear();
    steps.clear();
  }
};

// One encoded block: what the block index and the payload section of a frame hold of it.
struct EncodedBlock {
  BlockMode mode = BlockMode::kEmpty;
  uint32_t nnz = 0;         // changed elements; element count of the block for absolute dense modes
  uint16_t parameters = 0;  // of the mode, FORMAT.md
  std::vector<std::byte> payload;
};

// The same, looking into a frame's bytes.
struct EncodedBlockView {
  BlockMode mode = BlockMode::kEmpty;
  uint32_t nnz = 0;
  uint16_t parameters = 0;
  ByteSpan payload;
};

// `block`, which must outlive it.
inline EncodedBlockView ViewOf(const EncodedBlock& block) {
  return {.mode = block.mode,
          .nnz = block.nnz,
          .parameters = block.parameters,
          .payload = block.payload};
}

// What a block decodes to. Reused from block to block to keep its memory.
struct DecodedBlock {
  enum class Kind : uint8_t {
    kNothing,  // unchanged
    kSteps,    // positions and steps, as BlockChanges (no step is zero)
    kValues,   // positions and absolute new values (element bits, zero-extended)
    kDense,    // dense: every element's new bytes
  };
  Kind kind = Kind::kNothing;
  std::vector<uint16_t> positions;
  std::vector<uint64_t> values;  // steps or values
  std::vector<std::byte> dense;
  std::vector<uint64_t> scratch;  // the decoder's own; no meaning outside
};

// "split-rice"; "unknown" for a number that is no mode.
std::string_view ToString(BlockMode mode);

}  // namespace dws
