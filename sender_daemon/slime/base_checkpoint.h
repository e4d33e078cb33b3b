// The checkpoint that readers of slime's versions start from (--slime-checkpoint): they take a full
// version for all of it, and remove what that lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"

namespace dws {

// Of all files beside the weights of a checkpoint; held in memory.
inline constexpr uint64_t kSlimeSideBytesMax = uint64_t{256} << 20;

struct BaseCheckpoint {
  std::set<std::string> tensors;  // each is to be published
  // The files that are no weights, by name: config.json, the tokenizer. Not those in folders of it,
  // nor hidden ones.
  std::map<std::string, std::vector<std::byte>> side_files;
};

// INVALID_ARGUMENT: there are no weights in `folder`, or they cannot be read, or the other files
// are too large to be that.
Result<BaseCheckpoint> ReadBaseCheckpoint(FileSystem& files, const std::string& folder);

}  // namespace dws
