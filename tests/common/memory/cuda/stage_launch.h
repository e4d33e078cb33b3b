// One launch of dws_stage in tests: encoded blocks against live memory. The results are compared
// with those of the codec for the host on the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/delta/blocks/block.h"
#include "common/model/class_table.h"
#include "common/model/tensor_spec.h"
#include "tests/common/delta/samples.h"
#include "tests/common/memory/cuda/kernel_runner.h"
#include "tests/common/memory/cuda/live_slice.h"

namespace dws::cuda {

// A block of a slice, encoded against `before`.
struct StageCase {
  std::string name;
  DType dtype = DType::kBF16;
  samples::Bytes before;
  EncodedBlock block;
  ClassTable table;
  SliceLayout layout;
  uint64_t elements_in_front = 0;  // of the block in its slice
  uint64_t first_word = 0;
};

// Stages all of `cases` in one launch and checks each: a block that the host's decoder accepts is
// staged with the same values and with DiffBlock's difference of digests; a block that it refuses
// is counted as a failure; nothing is written outside the blocks' rooms or to live memory. Then
// commits the valid blocks and checks live memory. Returns how many blocks were valid.
size_t CheckStaging(KernelRunner& runner, const std::vector<StageCase>& cases,
                    samples::Random& random);

}  // namespace dws::cuda
