// Writes what a chain of deltas makes of a checkpoint as a checkpoint of its own. Its files are
// those of the base, byte for byte but for the weights: split, order, metadata and index are kept,
// and so are other files of the folder (configuration, tokenizer), but for temporary ones (*.tmp).
//
// Written under another name first (OUT.partial-PID for a folder, OUT.tmp for a file), synced and
// renamed at the end: OUT is there as a whole or not at all. What a killed process leaves under
// such a name may be removed, and is by a later one of the same name.
#pragma once

#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/model/digest.h"
#include "tools/checkpoint/block_walk.h"
#include "tools/checkpoint/delta_chain.h"

namespace dws::checkpoint {

struct OutputPlan {
  const std::string& base_path;  // what `base` was opened from: a file or a folder
  const Checkpoint& base;
  std::span<const Digest> after;  // of all slices, as CheckChain proved them
  const std::string& out;
};

// ALREADY_EXISTS: `out` is there, and is no empty folder; looked at before anything is read.
Status CheckOutput(const std::string& out);

// INVALID_ARGUMENT: a name that `out` has while it is written is that of something that is `read`.
Status CheckApart(const std::string& out, std::span<const std::string> read);

// ABORTED: the base changed while it was read. FAILED_PRECONDITION: as CheckUnchanged. Others: of
// the file system, with nothing left behind.
Status WriteOutput(const Walk& walk, FileSystem& files, const OutputPlan& plan,
                   ChainSource& source);

}  // namespace dws::checkpoint
