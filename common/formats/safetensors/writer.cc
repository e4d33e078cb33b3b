// A file gets its name only after it is complete and on disk, so a reader never finds half a file.
#include "common/formats/safetensors/writer.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace dws::safetensors {
namespace {

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

}  // namespace dws::safetensors
