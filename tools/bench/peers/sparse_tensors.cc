// An I32 tensor of element numbers and one of values for each changed tensor, uncompressed.
#include <cstring>

#include "tools/bench/peers/peer.h"
#include "tools/bench/safetensors_file.h"

namespace dws::bench {
namespace {

Result<std::vector<std::byte>> Encode(std::span<const TensorPair> tensors) {
  std::vector<std::vector<std::byte>> parts;
  TensorFile file;
  for (const TensorPair& tensor : tensors) {
    const size_t width = ElementBytes(tensor.spec.dtype);
    std::vector<std::byte> indices;
    std::vector<std::byte> values;
    for (size_t at = 0; at < tensor.before.size(); at += width) {
      if (std::memcmp(tensor.before.data() + at, tensor.after.data() + at, width) == 0) continue;
      indices.resize(indices.size() + 4);
      StoreLe(indices.data() + indices.size() - 4, static_cast<uint32_t>(at / width));
      const auto value = tensor.after.begin() + static_cast<ptrdiff_t>(at);
      values.insert(values.end(), value, value + static_cast<ptrdiff_t>(width));
    }
    if (indices.empty()) continue;
    const uint64_t count = indices.size() / 4;
    file.tensors.push_back(
        {.name = tensor.spec.name + ".indices", .dtype = "I32", .shape = {count}, .bytes = {}});
    file.tensors.push_back({.name = tensor.spec.name + ".values",
                            .dtype = std::string(ToString(tensor.spec.dtype)),
                            .shape = {count},
                            .bytes = {}});
    parts.push_back(std::move(indices));
    parts.push_back(std::move(values));
  }
  for (size_t i = 0; i < parts.size(); ++i) file.tensors[i].bytes = parts[i];
  return WriteTensorFile(file);
}

Status Decode(ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states) {
  DWS_ASSIGN_OR_RETURN(const TensorFile file, ParseTensorFile(bytes, "sparse"));
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Result<FileTensor> indices = file.Find(tensors[t].spec.name + ".indices");
    if (!indices.ok()) continue;  // unchanged
    DWS_ASSIGN_OR_RETURN(const FileTensor values, file.Find(tensors[t].spec.name + ".values"));
    const size_t width = ElementBytes(tensors[t].spec.dtype);
    for (size_t i = 0; i < indices->bytes.size() / 4; ++i) {
      const uint64_t at = uint64_t{LoadLe<uint32_t>(indices->bytes.data() + 4 * i)} * width;
      if (at + width > states[t].size()) return DataLossError("byte {} is outside its tensor", at);
      std::memcpy(states[t].data() + at, values.bytes.data() + i * width, width);
    }
  }
  return OkStatus();
}

}  // namespace

Peer SparseTensors() {
  return {.id = "P2h",
          .name = "sparse safetensors: int32 index + value",
          .bar = std::nullopt,
          .encode = Encode,
          .decode = Decode};
}

}  // namespace dws::bench
