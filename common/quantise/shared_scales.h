// Finds the tensors that share one scale: engines fuse gate with up, and q with k and v, into one
// parameter with one scale for the matrix, so checkpoints for them are made with one scale.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"

namespace dws::quantise {

// The parts of a tensor's name, between dots, that tell tensors of one scale apart: {"q_proj",
// "k_proj", "v_proj"}.
using SharedParts = std::vector<std::string>;

// Tells which of the trainer's tensors are quantised.
using IsQuantised = std::function<bool(const TensorSpec&)>;

// The trainer's shards that share one scale, as numbers in trainer.shards(); at least two.
using SharedSet = std::vector<size_t>;

// Returns, for each of `shares`, the sets of shards whose names differ only in such a part. A shard
// is in at most one set.
//
// INVALID_ARGUMENT, naming the tensor: a tensor of a set is missing in this rank's layout (so its
// amax cannot be known), or is not quantised while the others are; or stacks have different
// matrices or cuts.
Result<std::vector<std::vector<SharedSet>>> FindShared(std::span<const SharedParts> shares,
                                                       const IsQuantised& quantised,
                                                       const RankLayout& trainer);

}  // namespace dws::quantise
