#include "sender_daemon/slime/base_checkpoint.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "common/formats/safetensors/file_dtype.h"

namespace dws {

Result<BaseCheckpoint> ReadBaseCheckpoint(FileSystem& files, const std::string& folder) {
  const auto refuse = [](const Status& status) {
    return InvalidArgumentError("--slime-checkpoint: {}", Message(status));
  };
  BaseCheckpoint base;
  const auto names = files.List(folder);
  if (!names.ok()) return refuse(names.status());
  const auto weights = safetensors::Checkpoint::Open(folder);
  if (!weights.ok()) return refuse(weights.status());
  for (const safetensors::CheckpointTensor& tensor : weights->tensors()) {
    base.tensors.insert(tensor.name);
  }
  // The limit is for all files together, since all are held in memory.
  uint64_t left = kSlimeSideBytesMax;
  for (const std::string& name : *names) {
    const std::string path = folder + "/" + name;
    std::error_code ignored;
    if (name.starts_with('.') || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json") ||
        !std::filesystem::is_regular_file(path, ignored)) {
      continue;
    }
    auto bytes = files.ReadFile(path, left);
    if (absl::IsResourceExhausted(bytes.status())) {
      return InvalidArgumentError(
          "--slime-checkpoint: {}; files beside the weights may have {} bytes in all, remove what "
          "is not part of the model",
          Message(bytes.status()), kSlimeSideBytesMax);
    }
    if (!bytes.ok()) return refuse(bytes.status());
    left -= bytes->size();
    base.side_files[name] = *std::move(bytes);
  }
  return base;
}

// That the trainer has all of the checkpoint's tensors was checked before (SlimePublisher).
Result<safetensors::Checkpoint> OpenBaseWeights(const std::string& folder,
                                                const RankLayout& layout) {
  DWS_ASSIGN_OR_RETURN(safetensors::Checkpoint base,
                       safetensors::Checkpoint::Open(folder, FileAccess::kUnmapped));
  for (const Shard& shard : layout.shards()) {
    const TensorSpec& tensor = shard.tensor;
    const safetensors::CheckpointTensor* const there = base.Find(tensor.name);
    if (there == nullptr) {
      return FailedPreconditionError("{} has no tensor '{}', which the trainer publishes", folder,
                                     tensor.name);
    }
    if (there->dtype == safetensors::FileDTypeOf(tensor.dtype) && there->shape == tensor.shape) {
      continue;
    }
    return FailedPreconditionError("tensor '{}' of {} is {} [{}], the trainer's is {} [{}]",
                                   tensor.name, folder, safetensors::NameOf(there->dtype),
                                   fmt::join(there->shape, ", "), ToString(tensor.dtype),
                                   fmt::join(tensor.shape, ", "));
  }
  return base;
}

}  // namespace dws
