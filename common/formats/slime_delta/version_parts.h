// Publishes a version whose tensors several writers have written, as one folder that unmodified
// readers apply.
//
// 1. Each writer writes a part: a version folder that has only its own tensors, with an index. It
//    keeps its temporary name, which readers ignore (VersionWriteOptions::part).
// 2. JoinParts moves the shards of all parts into one more folder with a temporary name, where they
//    are numbered as those of one version.
// 3. It writes the index, made from the indices of all parts, and renames the folder to its final
//    name. This publishes the version.
//
// If that fails or the process dies before the last rename, readers see nothing of the version, and
// the parts may lack shards: remove them, and begin with new ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/version_index.h"
#include "common/formats/slime_delta/version_writer.h"

namespace dws::slime {

// A part that its writer has completed.
struct VersionPart {
  std::string folder;  // its path
  VersionIndex index;
};

// Reads the index of a part of `version` in `folder`, a path. UNAVAILABLE: the part is not complete
// yet. DATA_LOSS: its index is no index of that version, or names files that are not its shards.
Result<VersionPart> ReadPart(FileSystem& files, const std::string& folder, uint64_t version);

struct JoinOptions {
  uint64_t version = 0;
  std::string writer = {};  // as VersionWriteOptions; not one of a part
  // Other files of a full version, by name (FullVersionOptions).
  std::map<std::string, std::vector<std::byte>> side_files = {};
  // See VersionWriteOptions.
  std::function<Status()> may_publish = nullptr;
};

// Publishes `parent`/weight_vNNNNNN from `parts`, at least one, whose folders are in `parent`. Its
// index has the metadata that all of them have. INVALID_ARGUMENT: two parts have the same tensor,
// or different metadata; the message names them. Other errors as BeginVersionFolder and
// PublishVersionFolder, and of the file system.
Result<VersionSummary> JoinParts(FileSystem& files, const std::string& parent,
                                 const JoinOptions& options, const std::vector<VersionPart>& parts);

}  // namespace dws::slime
