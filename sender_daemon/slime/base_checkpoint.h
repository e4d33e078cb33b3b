// The checkpoint that readers of slime's versions start from (--slime-checkpoint). A full version
// replaces all of it: readers remove the files that the version lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/safetensors/header.h"
#include "common/model/layout.h"

namespace dws {

// Limit of all files other than weights in a checkpoint; they are held in memory.
inline constexpr uint64_t kSlimeSideBytesMax = uint64_t{256} << 20;

// What full versions take from the checkpoint that readers start from.
struct BaseCheckpoint {
  std::map<std::string, safetensors::HeaderTensor> tensors;  // all of them must be published
  // The files other than weights, by name: config.json, the tokenizer. Without hidden files and
  // files in subfolders.
  std::map<std::string, std::vector<std::byte>> side_files;
};

// INVALID_ARGUMENT: there are no weights in `folder`, or they cannot be read, or the other files
// are too large.
Result<BaseCheckpoint> ReadBaseCheckpoint(FileSystem& files, const std::string& folder);

// Checks that engines of a view have loaded a checkpoint of its types. FAILED_PRECONDITION: a
// tensor of `layout` has another type or shape in the checkpoint; the message names it. The
// trainer's own layout always passes: a full version may replace a checkpoint of other types.
Status CheckViewTypes(const BaseCheckpoint& base, const RankLayout& layout);

// Opens its weights, to find the changes that a version makes to them. FAILED_PRECONDITION: they
// differ from the tensors of `layout` by name, type or shape; the message names one. Other errors
// as Checkpoint.
Result<safetensors::Checkpoint> OpenBaseWeights(const std::string& folder,
                                                const RankLayout& layout);

}  // namespace dws
