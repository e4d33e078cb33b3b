#include "tools/bench/trace.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/base/bytes.h"

namespace dws::bench {
namespace {

std::optional<DType> DTypeNamed(const std::string& name) {
  for (uint32_t number = 1; DTypeFromNumber(number).has_value(); ++number) {
    if (ToString(*DTypeFromNumber(number)) == name) return DTypeFromNumber(number);
  }
  return std::nullopt;
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

Result<std::vector<TraceTensor>> ReadTrace(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const uint64_t header_bytes = file.size() < 8 ? 0 : LoadLe<uint64_t>(AsBytes(file).data());
  if (file.size() < 8 || header_bytes > file.size() - 8) {
    return DataLossError("{}: {} bytes are no safetensors file", path, file.size());
  }
  const nlohmann::json header = nlohmann::json::parse(file.substr(8, header_bytes), nullptr, false);
  if (!header.is_object()) return DataLossError("{}: its header is no JSON object", path);
  const ByteSpan data = AsBytes(file).subspan(8 + header_bytes);
  std::vector<TraceTensor> tensors;
  for (const auto& [name, tensor] : header.items()) {  // ordered by name
    if (name == "__metadata__") continue;
    const std::optional<DType> dtype = DTypeNamed(tensor.value("dtype", ""));
    const auto offsets = tensor.value("data_offsets", std::vector<uint64_t>());
    if (!dtype.has_value() || offsets.size() != 2 || offsets[0] > offsets[1] ||
        offsets[1] > data.size()) {
      return DataLossError("{}: tensor '{}' has an unknown dtype or lies outside the file", path,
                           name);
    }
    const ByteSpan bytes = data.subspan(offsets[0], offsets[1] - offsets[0]);
    TraceTensor& read = tensors.emplace_back();
    read.spec.name = name;
    read.spec.dtype = *dtype;
    read.spec.shape = tensor.value("shape", std::vector<uint64_t>());
    read.bytes.assign(bytes.begin(), bytes.end());
    if (read.spec.SizeBytes() != bytes.size()) {
      return DataLossError("{}: tensor '{}' has {} bytes, its shape has {}", path, name,
                           bytes.size(), read.spec.SizeBytes());
    }
  }
  return tensors;
}

}  // namespace dws::bench
