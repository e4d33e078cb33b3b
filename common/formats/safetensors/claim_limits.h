// Bounds for what the files of a checkpoint or a version claim, checked before anything large is
// read or allocated. The default is what limits.h allows; slime_delta/fit.h makes tighter bounds
// for files that must fit an existing checkpoint.
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/status.h"
#include "common/formats/safetensors/header.h"
#include "common/model/limits.h"

namespace dws::safetensors {

struct ClaimLimits {
  uint64_t index_bytes_max = limits::kCheckpointIndexBytesMax;
  uint64_t header_bytes_max = limits::kSafetensorsHeaderBytesMax;  // of one file
  uint64_t tensors_max = limits::kTensorsMax;  // of an index, and of all files together
  // Called with each tensor of a header as soon as it is read. An error ends the reading and is
  // returned. May be empty.
  std::function<Status(const HeaderTensor& tensor)> check_tensor = nullptr;
};

}  // namespace dws::safetensors
