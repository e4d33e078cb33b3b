// A version as a checkpoint of its own: a base and the deltas that lead from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "tools/checkpoint/progress.h"

namespace dws::checkpoint {

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

// Writes `out` (output.h) after the chain was proved (chain_check.h). Errors as both; nothing is
// left behind then. A base that is the last version already is copied.
Result<MaterializedVersion> Materialize(FileSystem& files, const MaterializeRequest& request,
                                        ThreadPool& pool, const Progress& progress);

}  // namespace dws::checkpoint
