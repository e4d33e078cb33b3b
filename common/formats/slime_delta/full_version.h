// Writes a version folder that is a full checkpoint: the chain of every reader begins anew with it.
//
// 1. The tensors are laid out into shards, and asked for one by one, in the order they are written.
// 2. Each shard is written as model-NNNNN.tmp and synced.
// 3. When all are there they become model-NNNNN-of-TOTAL.safetensors, and then comes the index,
//    which has no delta_encoding. Until here the folder has a name that readers do not look for; it
//    gets its own, which is the publication.
//
// What a writer that dies leaves under the other name, the next writer of that version clears.
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
  // Other files of the checkpoint, by name: readers take the folder for all of it, and remove what
  // is not there (config.json, the tokenizer).
  std::map<std::string, std::vector<std::byte>> side_files = {};
  // As VersionWriteOptions.
  std::function<Status()> may_publish = nullptr;
};

// The tensors of each shard, in the order in which they lie in it.
using ShardPlan = std::vector<std::vector<safetensors::HeaderTensor>>;

// Errors as safetensors::SplitShards and MakeHeader. INVALID_ARGUMENT also without tensors.
Result<ShardPlan> PlanShards(std::vector<safetensors::HeaderTensor> tensors,
                             uint64_t shard_bytes_max);

// Publishes in `folder`/weight_vNNNNNN, and returns the bytes of all tensors. `source` is called in
// the order of `plan`; its errors end the writing. Others: as BeginVersionFolder, and of the file
// system.
Result<uint64_t> WriteFullVersion(FileSystem& files, const std::string& folder,
                                  const FullVersionOptions& options, const ShardPlan& plan,
                                  const safetensors::TensorSource& source);

}  // namespace dws::slime
