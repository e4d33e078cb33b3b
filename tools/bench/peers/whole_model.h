// All tensors as one file, their bytes in order, for peers that work on files.
#pragma once

#include <span>
#include <vector>

#include "tools/bench/peers/peer.h"

namespace dws::bench {

std::vector<std::byte> JoinBefore(std::span<const TensorPair> tensors);
std::vector<std::byte> JoinAfter(std::span<const TensorPair> tensors);
std::vector<std::byte> Join(const TensorStates& states);
// DATA_LOSS: the file has another number of bytes than the states.
Status Split(ByteSpan file, TensorStates& states);

}  // namespace dws::bench
