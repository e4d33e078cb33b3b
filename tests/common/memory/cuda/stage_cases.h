// Encoded blocks for kernel tests: the same change in every mode that can encode it.
#pragma once

#include <cstdint>
#include <vector>

#include "common/delta/encoder.h"
#include "tests/common/memory/cuda/stage_launch.h"

namespace dws::cuda {

// A table that blocks of `dtype` can have.
ClassTable RandomTable(samples::Random& random, DType dtype);

// Adds blocks that bring `before` to `after`, one for each mode; none when nothing changes. Layout,
// place in the slice and word number are random.
void AddAllModes(samples::Random& random, const std::string& name, DType dtype,
                 const samples::Bytes& before, const samples::Bytes& after, const ClassTable& table,
                 EncodeScratch& scratch, std::vector<StageCase>& cases);

// Trained weights before and after one step of an optimiser. Steps have about one size, so small
// weights change more often, and by more units.
struct Weights {
  samples::Bytes before;
  samples::Bytes after;
};
// `dtype` is BF16, F16, F32, F64 or a float of 8 bits; `step` is the size of a step relative to a
// weight's usual size.
Weights TrainedWeights(samples::Random& random, DType dtype, uint32_t element_count, double step);

// The table that a sender chooses after this change.
ClassTable ChosenTable(DType dtype, const Weights& weights);

}  // namespace dws::cuda
