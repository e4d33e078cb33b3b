// Reads the steps of a recorded training run: safetensors files that hold the same tensors.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/measure/workload.h"

namespace dws::bench {

// The .safetensors files of `directory`, by name. NOT_FOUND: fewer than two.
Result<std::vector<std::string>> TraceFiles(const std::string& directory);

// The tensors of `file` as both versions, ordered by name. DATA_LOSS: not a safetensors file.
Result<std::vector<TensorPair>> ReadFirstStep(const std::string& file);
// `after` becomes `before`, and `after` becomes the contents of `file`. DATA_LOSS: it has other
// tensors.
Status ReadNextStep(const std::string& file, std::vector<TensorPair>& tensors);

// The last two steps of the trace.
Result<std::vector<TensorPair>> ReadLastSteps(const std::string& directory);

}  // namespace dws::bench
