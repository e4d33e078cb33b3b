#include "sender_daemon/slime/base_checkpoint.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "common/formats/safetensors/file_dtype.h"

namespace dws {
namespace {

// `there` is a tensor of the checkpoint.
template <typename Tensor>
bool IsLike(const Tensor& there, const TensorSpec& tensor) {
  return there.dtype == safetensors::FileDTypeOf(tensor.dtype) && there.shape == tensor.shape;
}

}  // namespace

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
    base.tensors[tensor.name] = {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape};
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

Status CheckViewTypes(const BaseCheckpoint& base, const RankLayout& layout) {
  if (layout.view().empty()) return OkStatus();
  for (const Shard& shard : layout.shards()) {
    const TensorSpec& tensor = shard.tensor;
    const auto there = base.tensors.find(tensor.name);
    if (there == base.tensors.end() || IsLike(there->second, tensor)) continue;
    return FailedPreconditionError(
        "tensor '{}' of --slime-checkpoint is {} [{}], and the view's is {} [{}]: name the "
        "checkpoint that engines of this view load, and leave out what it leaves out "
        "(except=PATTERN)",
        tensor.name, safetensors::NameOf(there->second.dtype), fmt::join(there->second.shape, ", "),
        ToString(tensor.dtype), fmt::join(tensor.shape, ", "));
  }
  return OkStatus();
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
    if (IsLike(*there, tensor)) continue;
    return FailedPreconditionError("tensor '{}' of {} is {} [{}], the trainer's is {} [{}]",
                                   tensor.name, folder, safetensors::NameOf(there->dtype),
                                   fmt::join(there->shape, ", "), ToString(tensor.dtype),
                                   fmt::join(tensor.shape, ", "));
  }
  return base;
}

}  // namespace dws
