// Reads the steps of a recorded training run: safetensors files that hold the same tensors.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/tensor_spec.h"

namespace dws::bench {

struct TraceTensor {
  TensorSpec spec;
  std::vector<std::byte> bytes;
};

// The .safetensors files of `directory`, by name. NOT_FOUND: fewer than two.
Result<std::vector<std::string>> TraceFiles(const std::string& directory);

// Tensors ordered by name. DATA_LOSS: no safetensors file.
Result<std::vector<TraceTensor>> ReadTrace(const std::string& path);

}  // namespace dws::bench
