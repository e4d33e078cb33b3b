#include "common/formats/slime_delta/full_version.h"

#include <utility>

#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/version_index.h"
#include "common/formats/slime_delta/version_writer.h"

namespace dws::slime {
namespace {

// transformers requires this member.
safetensors::Metadata FileMetadata() { return {{"format", "pt"}}; }

std::string TemporaryPath(const std::string& folder, size_t number) {
  return fmt::format("{}/model-{:05d}.tmp", folder, number);
}

}  // namespace

Result<ShardPlan> PlanShards(std::vector<safetensors::HeaderTensor> tensors,
                             uint64_t shard_bytes_max) {
  if (tensors.empty()) return InvalidArgumentError("a full checkpoint without tensors");
  DWS_ASSIGN_OR_RETURN(ShardPlan plan,
                       safetensors::SplitShards(std::move(tensors), shard_bytes_max));
  for (std::vector<safetensors::HeaderTensor>& shard : plan) {
    DWS_ASSIGN_OR_RETURN(safetensors::NewHeader made,
                         safetensors::MakeHeader(FileMetadata(), std::move(shard)));
    shard = std::move(made.header.tensors);
  }
  return plan;
}

Result<uint64_t> WriteFullVersion(FileSystem& files, const std::string& folder,
                                  const FullVersionOptions& options, const ShardPlan& plan,
                                  const safetensors::TensorSource& source) {
  DWS_ASSIGN_OR_RETURN(const std::string path,
                       BeginVersionFolder(files, folder, options.version, options.writer));
  VersionIndex index{.version = options.version, .extra = options.extra};
  uint64_t tensor_bytes = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    DWS_RETURN_IF_ERROR(safetensors::WriteTensorFile(files, TemporaryPath(path, i), FileMetadata(),
                                                     plan[i], source));
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    const std::string name = safetensors::MakeShardName({.number = i, .total = plan.size()});
    DWS_RETURN_IF_ERROR(files.Rename(TemporaryPath(path, i), path + "/" + name));
    for (const safetensors::HeaderTensor& tensor : plan[i]) {
      index.weight_map[tensor.name] = name;
      tensor_bytes += tensor.size_bytes();
    }
  }
  DWS_ASSIGN_OR_RETURN(const std::string text, MakeVersionIndex(index));
  for (const auto& [name, bytes] : options.side_files) {
    DWS_RETURN_IF_ERROR(files.ReplaceFile(path + "/" + name, bytes));
  }
  if (options.part && options.may_publish) DWS_RETURN_IF_ERROR(options.may_publish());
  DWS_RETURN_IF_ERROR(files.ReplaceFile(path + "/" + safetensors::kIndexFile, AsBytes(text)));
  if (options.part) return tensor_bytes;
  if (options.may_publish) DWS_RETURN_IF_ERROR(options.may_publish());
  DWS_RETURN_IF_ERROR(PublishVersionFolder(files, folder, options.version, options.writer));
  return tensor_bytes;
}

}  // namespace dws::slime
