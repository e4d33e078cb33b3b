// Writes the result of a chain of deltas as a new checkpoint. Its files are copies of the base's
// files except for the weights: split, order, metadata and index are kept, and so are other files
// of the folder (configuration, tokenizer), except temporary ones (*.tmp).
//
// The output is written under a temporary name (OUT.partial-PID for a folder, OUT.tmp for a file),
// synced, and renamed at the end: OUT exists as a whole or not at all. What a killed process leaves
// under such a name may be removed; a later run with the same temporary name removes it.
#pragma once

#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "tools/checkpoint/parts/block_walk.h"
#include "tools/checkpoint/parts/delta_chain.h"

namespace dws::checkpoint {

// What to write.
struct OutputPlan {
  const std::string& base_path;  // what `base` was opened from: a file or a folder
  const Checkpoint& base;
  std::span<const Digest> after;  // of all slices, proved by CheckChain
  const std::string& out;
};

// Call it before anything is read. ALREADY_EXISTS: `out` exists and is not an empty folder.
Status CheckOutput(const std::string& out);

// INVALID_ARGUMENT: a temporary name of `out` is the name of a file that is `read`.
Status CheckApart(const std::string& out, std::span<const std::string> read);

// ABORTED: the base changed while it was read. FAILED_PRECONDITION: as CheckUnchanged. Others: of
// the file system. Nothing is left behind after an error.
Status WriteOutput(const Walk& walk, FileSystem& files, const OutputPlan& plan,
                   ChainSource& source);

}  // namespace dws::checkpoint
