// The lower bound of any code for the changes between two versions, given what both sides know.
#pragma once

#include <span>

#include "tools/bench/measure/workload.h"

namespace dws::bench {

// Bits of positions and steps of all tensors, each tensor's elements in classes by the magnitude
// byte of their old value (the exponent of a BF16): in each class the positions cost n*H(k/n), and
// the steps their empirical entropy.
double ClassEntropyBits(std::span<const TensorPair> tensors);

}  // namespace dws::bench
