// Proves, before anything is written, that a chain of deltas belongs to a checkpoint and leads
// where it says.
#pragma once

#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/model/digest.h"
#include "tools/checkpoint/block_walk.h"
#include "tools/checkpoint/delta_chain.h"

namespace dws::checkpoint {

struct CheckedChain {
  // The checkpoint is what the last delta leads to already: nothing is to be done.
  bool already_applied = false;
  std::vector<Digest> after;  // of all slices, after the last delta
};

// Reads the whole checkpoint once. `source` is the chain's. FAILED_PRECONDITION: another base, with
// the names of tensors that differ from it; the last delta's result is no such error. DATA_LOSS: a
// delta is damaged, or leads to other weights than its manifest says.
Result<CheckedChain> CheckChain(const Walk& walk, std::span<const DeltaFile> chain,
                                ChainSource& source);

}  // namespace dws::checkpoint
