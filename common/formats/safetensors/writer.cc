#include "common/formats/safetensors/writer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "common/formats/safetensors/checkpoint_index.h"

namespace dws::safetensors {
namespace {

constexpr const char* kSingleFile = "model.safetensors";

Status AppendTensors(AppendFile& file, const NewHeader& made, const TensorSource& source) {
  DWS_RETURN_IF_ERROR(file.Append(made.bytes));
  for (const HeaderTensor& tensor : made.header.tensors) {
    DWS_ASSIGN_OR_RETURN(const ByteSpan bytes, source(tensor));
    if (bytes.size() != tensor.size_bytes()) {
      return InvalidArgumentError("tensor '{}': its source gave {} bytes, its shape has {}",
                                  tensor.name, bytes.size(), tensor.size_bytes());
    }
    if (!bytes.empty()) DWS_RETURN_IF_ERROR(file.Append(bytes));
  }
  return file.Sync();
}

Status CheckEmpty(FileSystem& files, const std::string& folder) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) {
    if (name == kIndexFile || IsShardName(name)) {
      return AlreadyExistsError(
          "{}: has {} already; a checkpoint is written to a folder without any", folder, name);
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<std::vector<HeaderTensor>>> SplitShards(std::vector<HeaderTensor> tensors,
                                                           uint64_t shard_bytes_max) {
  std::sort(tensors.begin(), tensors.end(),
            [](const HeaderTensor& a, const HeaderTensor& b) { return a.name < b.name; });
  std::vector<std::vector<HeaderTensor>> shards(1);
  uint64_t used = 0;
  for (HeaderTensor& tensor : tensors) {
    DWS_ASSIGN_OR_RETURN(const uint64_t size_bytes, TensorBytes(tensor.dtype, tensor.shape));
    if (!shards.back().empty() && shards.back().back().name == tensor.name) {
      return InvalidArgumentError("two tensors are named '{}'", tensor.name);
    }
    if (!shards.back().empty() && size_bytes > shard_bytes_max - std::min(used, shard_bytes_max)) {
      shards.emplace_back();
      used = 0;
    }
    used += size_bytes;
    shards.back().push_back(std::move(tensor));
  }
  if (shards.size() > limits::kCheckpointFilesMax) {
    return ResourceExhaustedError("{} files of at most {} bytes, at most {} files are allowed",
                                  shards.size(), shard_bytes_max, limits::kCheckpointFilesMax);
  }
  return shards;
}

Status WriteTensorFile(FileSystem& files, const std::string& path, const Metadata& metadata,
                       std::vector<HeaderTensor> tensors, const TensorSource& source) {
  Result<NewHeader> made = MakeHeader(metadata, std::move(tensors));
  if (!made.ok()) return Annotate(made.status(), path);
  const std::string temporary = path + ".tmp";
  {
    DWS_ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, files.Create(temporary));
    const Status written = AppendTensors(*file, *made, source);
    if (!written.ok()) {
      static_cast<void>(files.Remove(temporary));  // the first error is the one to report
      return Annotate(written, path);
    }
  }
  return files.Rename(temporary, path);
}

Status WriteCheckpoint(FileSystem& files, const std::string& folder,
                       std::vector<HeaderTensor> tensors, const TensorSource& source,
                       const CheckpointWriteOptions& options) {
  DWS_RETURN_IF_ERROR(files.MakeFolders(folder));
  DWS_RETURN_IF_ERROR(CheckEmpty(files, folder));
  DWS_ASSIGN_OR_RETURN(std::vector<std::vector<HeaderTensor>> shards,
                       SplitShards(std::move(tensors), options.shard_bytes_max));
  if (shards.size() == 1) {
    return WriteTensorFile(files, folder + "/" + kSingleFile, options.metadata,
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
  DWS_ASSIGN_OR_RETURN(const std::string index, MakeIndex(weight_map, total_bytes));
  return files.ReplaceFile(folder + "/" + kIndexFile, AsBytes(index));
}

}  // namespace dws::safetensors
