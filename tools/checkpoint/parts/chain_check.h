// Proves, before anything is written, that a chain of deltas belongs to a checkpoint and gives the
// weights that its manifests state.
#pragma once

#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "tools/checkpoint/parts/block_walk.h"
#include "tools/checkpoint/parts/delta_chain.h"

namespace dws::checkpoint {

// A chain of deltas that was proved against a checkpoint.
struct CheckedChain {
  // The checkpoint already has the weights of the last delta: nothing needs to be done.
  bool already_applied = false;
  std::vector<Digest> after;  // of all slices, after the last delta
};

// Reads the whole checkpoint once, through `source`, the source of the chain. FAILED_PRECONDITION:
// the checkpoint is not the chain's base; the message names tensors that differ. (A checkpoint that
// is already the last delta's result is OK.) DATA_LOSS: a delta is damaged, or gives other weights
// than its manifest states.
Result<CheckedChain> CheckChain(const Walk& walk, std::span<const DeltaFile> chain,
                                ChainSource& source);

}  // namespace dws::checkpoint
