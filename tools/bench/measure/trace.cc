#include "tools/bench/measure/trace.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/formats/safetensors/checkpoint.h"

namespace dws::bench {
namespace {

Result<TensorSpec> SpecOf(const safetensors::CheckpointTensor& tensor, const std::string& path) {
  const std::optional<DType> dtype = safetensors::ModelDType(tensor.dtype);
  if (!dtype.has_value()) {
    return DataLossError("{}: tensor '{}' has the dtype {}, which is not compared", path,
                         tensor.name, safetensors::NameOf(tensor.dtype));
  }
  TensorSpec spec{.name = tensor.name, .dtype = *dtype, .shape = tensor.shape};
  DWS_RETURN_IF_ERROR(Validate(spec));
  return spec;
}

}  // namespace

Result<std::vector<std::string>> TraceFiles(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  if (files.size() < 2) {
    return NotFoundError("{}: {} safetensors files, expected two or more", directory, files.size());
  }
  // Steps are in the order of their names; a folder is listed in any order.
  std::sort(files.begin(), files.end());
  return files;
}

Result<std::vector<TensorPair>> ReadFirstStep(const std::string& file) {
  DWS_ASSIGN_OR_RETURN(const safetensors::Checkpoint checkpoint,
                       safetensors::Checkpoint::Open(file));
  std::vector<TensorPair> tensors;
  for (const safetensors::CheckpointTensor& tensor : checkpoint.tensors()) {
    TensorPair& pair = tensors.emplace_back();
    DWS_ASSIGN_OR_RETURN(pair.spec, SpecOf(tensor, file));
    pair.before.assign(tensor.bytes.begin(), tensor.bytes.end());
    pair.after = pair.before;
  }
  return tensors;
}

Status ReadNextStep(const std::string& file, std::vector<TensorPair>& tensors) {
  DWS_ASSIGN_OR_RETURN(std::vector<TensorPair> next, ReadFirstStep(file));
  if (next.size() != tensors.size()) {
    return DataLossError("{}: {} tensors, the file before it has {}", file, next.size(),
                         tensors.size());
  }
  for (size_t i = 0; i < next.size(); ++i) {
    if (!(next[i].spec == tensors[i].spec)) {
      return DataLossError("{}: tensor '{}' has another dtype or shape in the file before it", file,
                           next[i].spec.name);
    }
    tensors[i].before = std::exchange(tensors[i].after, std::move(next[i].after));
  }
  return OkStatus();
}

Result<std::vector<TensorPair>> ReadLastSteps(const std::string& directory) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> files, TraceFiles(directory));
  DWS_ASSIGN_OR_RETURN(std::vector<TensorPair> tensors, ReadFirstStep(files[files.size() - 2]));
  DWS_RETURN_IF_ERROR(ReadNextStep(files.back(), tensors));
  return tensors;
}

}  // namespace dws::bench
