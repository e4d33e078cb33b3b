// Which tensors have one scale together: engines fuse gate with up, and q with k and v, into one
// parameter with one scale of the matrix, so checkpoints for them are made with one.
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

// Which of the trainer's tensors are quantised.
using IsQuantised = std::function<bool(const TensorSpec&)>;

// For each set of names that differ in such a part alone, the shards of the trainer's that have them:
// the numbers in trainer.shards(), at least two, each in one set at most.
//
// INVALID_ARGUMENT, naming the tensor: one of a set is lacking in this rank's layout, so that its
// amax cannot be known, or is not quantised with the others; stacks differ in their matrices, or in
// how they are cut.
Result<std::vector<std::vector<size_t>>> FindShared(std::span<const SharedParts> shares,
                                                    const IsQuantised& quantised,
                                                    const RankLayout& trainer);

}  // namespace dws::quantise
