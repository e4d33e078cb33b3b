#include "tools/bench/safetensors_file.h"

#include <cstring>
#include <nlohmann/json.hpp>

namespace dws::bench {

Result<FileTensor> TensorFile::Find(const std::string& name) const {
  for (const FileTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  return DataLossError("expected a tensor '{}' among {}", name, tensors.size());
}

std::vector<std::byte> WriteTensorFile(const TensorFile& file) {
  nlohmann::ordered_json header;
  if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
  uint64_t offset = 0;
  for (const FileTensor& tensor : file.tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.is_null() ? "{}" : header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::vector<std::byte> bytes(8 + text.size() + offset);
  StoreLe<uint64_t>(bytes.data(), text.size());
  std::memcpy(bytes.data() + 8, text.data(), text.size());
  std::byte* to = bytes.data() + 8 + text.size();
  for (const FileTensor& tensor : file.tensors) {
    if (!tensor.bytes.empty()) std::memcpy(to, tensor.bytes.data(), tensor.bytes.size());
    to += tensor.bytes.size();
  }
  return bytes;
}

Result<TensorFile> ParseTensorFile(ByteSpan bytes, const std::string& what) {
  const uint64_t header_bytes = bytes.size() < 8 ? 0 : LoadLe<uint64_t>(bytes.data());
  if (bytes.size() < 8 || header_bytes > bytes.size() - 8) {
    return DataLossError("{}: {} bytes are no safetensors file", what, bytes.size());
  }
  const nlohmann::json header =
      nlohmann::json::parse(AsText(bytes.subspan(8, header_bytes)), nullptr, false);
  if (!header.is_object()) return DataLossError("{}: its header is no JSON object", what);
  const ByteSpan content = bytes.subspan(8 + header_bytes);
  TensorFile file;
  for (const auto& [name, tensor] : header.items()) {  // ordered by name
    if (name == "__metadata__") {
      for (const auto& [key, value] : tensor.items()) {
        if (value.is_string()) file.metadata[key] = value.get<std::string>();
      }
      continue;
    }
    const auto offsets = tensor.is_object() ? tensor.value("data_offsets", std::vector<uint64_t>())
                                            : std::vector<uint64_t>();
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > content.size()) {
      return DataLossError("{}: tensor '{}' lies outside the file", what, name);
    }
    file.tensors.push_back({.name = name,
                            .dtype = tensor.value("dtype", ""),
                            .shape = tensor.value("shape", std::vector<uint64_t>()),
                            .bytes = content.subspan(offsets[0], offsets[1] - offsets[0])});
  }
  return file;
}

}  // namespace dws::bench
