// Applies deltas to a checkpoint. The result is a new checkpoint; the base is not changed.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "tools/checkpoint/parts/progress.h"

namespace dws::checkpoint {

// A checkpoint, the deltas to apply in order, and where the result goes.
struct ApplyRequest {
  const std::string& base;  // a file or a folder
  std::span<const std::string> deltas;
  const std::string& out;
};

struct AppliedVersion {
  uint64_t version = 0;
  uint64_t changed_tensors = 0;
  uint64_t bytes = 0;  // of all weights
};

// Proves the chain (chain_check.h), then writes `out` (output.h). Errors as both; nothing is left
// behind then. A base that already is the last version is copied.
Result<AppliedVersion> ApplyDeltas(FileSystem& files, const ApplyRequest& request, ThreadPool& pool,
                                   const Progress& progress);

}  // namespace dws::checkpoint
