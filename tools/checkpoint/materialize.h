// Writes a version as a new checkpoint, from a base and the deltas after it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "tools/checkpoint/parts/progress.h"

namespace dws::checkpoint {

// A checkpoint, the deltas to apply, and where the result goes.
struct MaterializeRequest {
  const std::string& base;  // a file or a folder
  std::span<const std::string> deltas;
  const std::string& out;
};

struct MaterializedVersion {
  uint64_t version = 0;
  uint64_t changed_tensors = 0;
  uint64_t bytes = 0;  // of all weights
};

// Proves the chain (chain_check.h), then writes `out` (output.h). Errors as both; nothing is left
// behind then. A base that already is the last version is copied.
Result<MaterializedVersion> Materialize(FileSystem& files, const MaterializeRequest& request,
                                        ThreadPool& pool, const Progress& progress);

}  // namespace dws::checkpoint
