#include "tools/bench/trace.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "tools/bench/safetensors_file.h"

namespace dws::bench {
namespace {

std::optional<DType> DTypeNamed(const std::string& name) {
  for (uint32_t number = 1; DTypeFromNumber(number).has_value(); ++number) {
    if (ToString(*DTypeFromNumber(number)) == name) return DTypeFromNumber(number);
  }
  return std::nullopt;
}

Result<std::vector<std::byte>> ReadFile(const std::string& path) {
  std::error_code error;
  std::vector<std::byte> bytes(std::filesystem::file_size(path, error));
  std::ifstream stream(path, std::ios::binary);
  stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (error || !stream) return UnavailableError("{}: cannot be read", path);
  return bytes;
}

Result<TensorSpec> SpecOf(const FileTensor& tensor, const std::string& path) {
  const std::optional<DType> dtype = DTypeNamed(tensor.dtype);
  if (!dtype.has_value()) {
    return DataLossError("{}: tensor '{}' has the unknown dtype '{}'", path, tensor.name,
                         tensor.dtype);
  }
  TensorSpec spec{.name = tensor.name, .dtype = *dtype, .shape = tensor.shape};
  DWS_RETURN_IF_ERROR(Validate(spec));
  if (spec.SizeBytes() != tensor.bytes.size()) {
    return DataLossError("{}: tensor '{}' has {} bytes, its shape has {}", path, tensor.name,
                         tensor.bytes.size(), spec.SizeBytes());
  }
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
  std::sort(files.begin(), files.end());
  return files;
}

Result<std::vector<TensorPair>> ReadFirstStep(const std::string& file) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ReadFile(file));
  DWS_ASSIGN_OR_RETURN(const TensorFile parsed, ParseTensorFile(bytes, file));
  std::vector<TensorPair> tensors;
  for (const FileTensor& tensor : parsed.tensors) {
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
      return DataLossError("{}: tensor '{}' is another in the file before it", file,
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
