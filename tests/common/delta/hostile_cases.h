// Pairs of states of whole layouts that are hard for a codec: dense, degenerate, odd. hostile_test
// encodes them in every way, tests/golden/sizes.csv has their exact sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/layout.h"
#include "tests/common/delta/objects.h"
#include "tests/common/delta/samples.h"

namespace dws::samples {

struct HostileCase {
  std::string name;
  RankLayout layout;
  State before;
  State after;
};

// A layout of one tensor with one dimension.
RankLayout VectorLayout(DType dtype, uint64_t element_count);

// One tensor of `element_count` elements (1 or more) in every hostile pair of states: those of
// HostilePairs, and changes of all, of every other, of one element, on both sides of a block's end.
std::vector<HostileCase> HostileTensors(Random& random, DType dtype, uint32_t element_count);

// FP8 weights in tiles of 128 x 128 with an FP32 scale each. Between the states some scales double,
// so that all codes of their tiles change by a power of two; all other weights make a small step.
HostileCase FlippedScales(Random& random);

// Tensors of 0 and of 1 element, and of odd sizes with tails of 1 to 7 bytes, of every dtype;
// everything changes.
HostileCase OddTensors(Random& random);

}  // namespace dws::samples
