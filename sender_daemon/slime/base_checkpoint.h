// The checkpoint that readers of slime's versions start from (--slime-checkpoint). A full version
// replaces all of it: readers remove the files that the version lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/model/layout.h"

namespace dws {

// Limit of all files other than weights in a checkpoint; they are held in memory.
inline constexpr uint64_t kSlimeSideBytesMax = uint64_t{256} << 20;

// What full versions take from the checkpoint that readers start from.
struct BaseCheckpoint {
  std::set<std::string> tensors;  // the trainer must publish all of them
  // The files other than weights, by name: config.json, the tokenizer. Without hidden files and
  // files in subfolders.
  std::map<std::string, std::vector<std::byte>> side_files;
};

// INVALID_ARGUMENT: there are no weights in `folder`, or they cannot be read, or the other files
// are too large.
Result<BaseCheckpoint> ReadBaseCheckpoint(FileSystem& files, const std::string& folder);

// Opens its weights, to find the changes that a version makes to them. FAILED_PRECONDITION: they
// differ from the tensors of `layout` by name, type or shape; the message names one. Other errors
// as Checkpoint.
Result<safetensors::Checkpoint> OpenBaseWeights(const std::string& folder,
                                                const RankLayout& layout);

}  // namespace dws
