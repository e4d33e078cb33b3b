// The data the codec works on: the changes of one block, and one encoded block. Plain values.
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

// One encoded block: its entry in the block index of a frame, and its payload.
struct EncodedBlock {
  BlockMode mode = BlockMode::kEmpty;
  uint32_t nnz = 0;         // changed elements; element count of the block for absolute dense modes
  uint16_t parameters = 0;  // of the mode, FORMAT.md
  std::vector<std::byte> payload;
};

// Like EncodedBlock, but the payload is part of a frame's bytes, which must outlive the view.
struct EncodedBlockView {
  BlockMode mode = BlockMode::kEmpty;
  uint32_t nnz = 0;
  uint16_t parameters = 0;
  ByteSpan payload;
};

// A view of `block`, which must outlive the view.
inline EncodedBlockView ViewOf(const EncodedBlock& block) {
  return {.mode = block.mode,
          .nnz = block.nnz,
          .parameters = block.parameters,
          .payload = block.payload};
}

// The result of decoding one block. Reused for the next blocks to keep its memory.
struct DecodedBlock {
  enum class Kind : uint8_t {
    kNothing,  // unchanged
    kSteps,    // positions and steps, as in BlockChanges (no step is zero)
    kValues,   // positions and absolute new values (element bits, zero-extended)
    kDense,    // dense: every element's new bytes
  };
  Kind kind = Kind::kNothing;
  std::vector<uint16_t> positions;
  std::vector<uint64_t> values;  // steps or values
  std::vector<std::byte> dense;
  std::vector<uint64_t> scratch;  // only for the decoder; no meaning outside it
};

// "split-rice"; "unknown" for a number that is not a mode.
std::string_view ToString(BlockMode mode);

}  // namespace dws
