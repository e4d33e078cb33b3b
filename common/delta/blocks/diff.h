// Compares two states of one block, and applies changes to a block. Pure functions for capture and
// staging.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/fetch_ahead.h"
#include "common/delta/blocks/block.h"
#include "common/model/digest/digest.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Compares two states of one block after another. Lifecycle: one for each worker, reused; a result
// is valid until the next Diff. Owns about two megabytes, and touches only as much of it as there
// are changes. Threads: one at a time.
class BlockDiffer {
 public:
  BlockDiffer();

  // Fills `changes` with the steps from `before` to `after` (equal sizes, whole elements of
  // `dtype`, at most limits::kBlockElements) and returns the difference of their digests, after
  // minus before, counting words from `first_word`. Computes both from the changed words alone.
  // Loads every byte of `after` once: steps, digest and Update agree even if its owner writes
  // meanwhile.
  Digest Diff(DType dtype, ByteSpan before, ByteSpan after, uint64_t first_word,
              BlockChanges& changes);

  // Changes `block`, the `before` of the last Diff, to the state of `after` that Diff saw.
  void Update(MutableByteSpan block) const;

 private:
  // The difference that the changed words make. Fetches of `before` and `after` meanwhile.
  Digest DigestWords(uint64_t first_word, FetchAhead before, FetchAhead after) const;

  std::unique_ptr<uint16_t[]> positions_;
  std::unique_ptr<uint64_t[]> steps_;
  std::unique_ptr<uint16_t[]> words_;
  std::unique_ptr<uint64_t[]> words_before_;
  std::unique_ptr<uint64_t[]> words_after_;
  uint32_t word_count_ = 0;
};

// BlockDiffer::Diff, for callers that compare rarely: allocates for each call.
Digest DiffBlock(DType dtype, ByteSpan before, ByteSpan after, uint64_t first_word,
                 BlockChanges& changes);

// Changes `block` from the base to the new state, in place. Steps need exactly the base that the
// block was encoded against; values and dense bytes need no base. Positions are in range: the
// decoder has checked them.
void ApplyBlock(DType dtype, const DecodedBlock& decoded, MutableByteSpan block);

// Undoes steps: the inverse of ApplyBlock for Kind::kSteps and kNothing. Other kinds: CHECK.
void UndoBlock(DType dtype, const DecodedBlock& decoded, MutableByteSpan block);

// Combines the changes of `first` with those of `second`, which follow them: the union of the
// positions, with steps added modulo 2^w. Steps that add up to zero are left out. The result is
// exact.
BlockChanges ComposeSteps(DType dtype, const BlockChanges& first, const BlockChanges& second);

}  // namespace dws
