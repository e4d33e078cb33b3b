// The changes of one block as a GPU lists them, converted for a capture: pure functions between
// dws_diff (common/memory/cuda/kernels/diff/diff_args.h) and the encoder.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/delta/blocks/block.h"
#include "common/model/digest/digest.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Parallel arrays of packed little-endian numbers. Does not own them.
struct ListedChanges {
  uint32_t count = 0;
  ByteSpan positions;  // u16, ascending
  ByteSpan before;     // elements
  ByteSpan after;      // elements
};

// A block that was compared: its changes, and the difference of its digests (after minus before).
// The two agree with each other and with the snapshot.
struct DiffedBlock {
  Digest difference;
  ListedChanges changes;
};

// Memory that DifferenceOf reuses from block to block.
struct ListedWords {
  void Reserve(size_t count) {
    if (numbers.size() >= count) return;
    numbers.resize(count);
    before.resize(count);
    after.resize(count);
  }

  std::vector<uint16_t> numbers;
  std::vector<uint64_t> before;
  std::vector<uint64_t> after;
};

// By how much `changes` change the digest of `block`, which has the bytes before. nullopt: they are
// not changes of this block: positions do not ascend or are outside the block, or an element had
// another value, or keeps its value, which no delta can say.
std::optional<Digest> DifferenceOf(DType dtype, const ListedChanges& changes, ByteSpan block,
                                   uint64_t first_word, ListedWords& words);

// Fills `steps` with the same changes, as steps.
void StepsOf(DType dtype, const ListedChanges& changes, BlockChanges& steps);

// Writes the new values to `block`.
void StoreListed(DType dtype, const ListedChanges& changes, MutableByteSpan block);

}  // namespace dws
