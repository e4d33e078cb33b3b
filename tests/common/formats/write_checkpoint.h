// Writes whole checkpoints in HuggingFace's layout, as local checkpoints of readers have it.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/safetensors/writer.h"

namespace dws::safetensors {

struct CheckpointWriteOptions {
  Metadata metadata = {{"format", "pt"}};  // of each file; transformers requires "format"
  // Limit for the tensors of one file; a larger tensor gets a separate file.
  uint64_t shard_bytes_max = uint64_t{5} << 30;
};

// Writes a checkpoint to `folder`, which it creates: model.safetensors when one file is enough,
// otherwise model-00001-of-00003.safetensors and so on, with tensors by name, and the index.
inline Status WriteCheckpoint(FileSystem& files, const std::string& folder,
                              std::vector<HeaderTensor> tensors, const TensorSource& source,
                              const CheckpointWriteOptions& options) {
  DWS_RETURN_IF_ERROR(files.MakeFolders(folder));
  DWS_ASSIGN_OR_RETURN(std::vector<std::vector<HeaderTensor>> shards,
                       SplitShards(std::move(tensors), options.shard_bytes_max));
  if (shards.size() == 1) {
    return WriteTensorFile(files, folder + "/model.safetensors", options.metadata,
                           std::move(shards[0]), source);
  }
  std::map<std::string, std::string> weight_map;
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = MakeShardName({.number = i + 1, .total = shards.size()});
    for (const HeaderTensor& tensor : shards[i]) {
      weight_map[tensor.name] = name;
      DWS_ASSIGN_OR_RETURN(const uint64_t size_bytes, TensorBytes(tensor.dtype, tensor.shape));
      total_bytes += size_bytes;
    }
    DWS_RETURN_IF_ERROR(WriteTensorFile(files, folder + "/" + name, options.metadata,
                                        std::move(shards[i]), source));
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", weight_map}};
  const std::string text = index.dump(2);
  return files.ReplaceFile(folder + "/" + kIndexFile, AsBytes(text));
}

}  // namespace dws::safetensors
