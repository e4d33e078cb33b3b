// Writes a version folder that is a full checkpoint. Every reader's chain begins again with it.
//
// 1. The tensors are divided into shards, and requested one by one in the order of writing.
// 2. Each shard is written as model-NNNNN.tmp and synced.
// 3. When all exist they are renamed to model-NNNNN-of-TOTAL.safetensors. Then the side files and
//    the index, which has no delta_encoding, are written. Until here the folder has a temporary
//    name that readers ignore. The rename to its final name publishes it.
//
// If a writer dies, the next writer of that version clears the folder with the temporary name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/safetensors/writer.h"
#include "common/model/limits.h"

namespace dws::slime {

struct FullVersionOptions {
  uint64_t version = 0;     // at least 1
  std::string writer = {};  // as VersionWriteOptions
  uint64_t shard_bytes_max = limits::kSlimeShardBytesDefault;
  std::map<std::string, std::string> extra;  // more metadata of the index
  // Other files of the checkpoint, by name (config.json, the tokenizer). Readers treat the folder
  // as the complete checkpoint and remove files that are not in it.
  std::map<std::string, std::vector<std::byte>> side_files = {};
  // These two: see VersionWriteOptions.
  std::function<Status()> may_publish = nullptr;
  bool part = false;
};

// The tensors of each shard, in the order of the file.
using ShardPlan = std::vector<std::vector<safetensors::HeaderTensor>>;

// Errors as safetensors::SplitShards and MakeHeader. INVALID_ARGUMENT also without tensors.
Result<ShardPlan> PlanShards(std::vector<safetensors::HeaderTensor> tensors,
                             uint64_t shard_bytes_max);

// Publishes `folder`/weight_vNNNNNN, and returns the total bytes of all tensors. `source` is called
// in the order of `plan`; its errors end the writing. Other errors: as BeginVersionFolder, and of
// the file system.
Result<uint64_t> WriteFullVersion(FileSystem& files, const std::string& folder,
                                  const FullVersionOptions& options, const ShardPlan& plan,
                                  const safetensors::TensorSource& source);

}  // namespace dws::slime
