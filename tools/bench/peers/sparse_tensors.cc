// An I32 tensor of element numbers and one of values for each changed tensor, uncompressed.
#include <cstring>
#include <map>

#include "common/formats/safetensors/header.h"
#include "tools/bench/peers/peer.h"

namespace dws::bench {
namespace {

Result<std::vector<std::byte>> Encode(std::span<const TensorPair> tensors) {
  std::vector<std::vector<std::byte>> parts;
  std::vector<safetensors::TensorBytesView> views;
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
    views.push_back({.name = tensor.spec.name + ".indices",
                     .dtype = safetensors::FileDType::kI32,
                     .shape = {count}});
    views.push_back({.name = tensor.spec.name + ".values",
                     .dtype = safetensors::FileDTypeOf(tensor.spec.dtype),
                     .shape = {count}});
    parts.push_back(std::move(indices));
    parts.push_back(std::move(values));
  }
  for (size_t i = 0; i < parts.size(); ++i) views[i].bytes = parts[i];
  return safetensors::MakeFile({}, views);
}

Status Decode(ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states) {
  DWS_ASSIGN_OR_RETURN(const safetensors::Header header, safetensors::ParseHeader(bytes, "sparse"));
  std::map<std::string, ByteSpan> parts;
  for (const safetensors::HeaderTensor& tensor : header.tensors) {
    parts[tensor.name] = header.BytesOf(tensor, bytes);
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    const auto indices = parts.find(tensors[t].spec.name + ".indices");
    if (indices == parts.end()) continue;  // unchanged
    const ByteSpan values = parts[tensors[t].spec.name + ".values"];
    const size_t width = ElementBytes(tensors[t].spec.dtype);
    if (values.size() != indices->second.size() / 4 * width) {
      return DataLossError("{} bytes of values for {} of indices", values.size(),
                           indices->second.size());
    }
    for (size_t i = 0; i < indices->second.size() / 4; ++i) {
      const uint64_t at = uint64_t{LoadLe<uint32_t>(indices->second.data() + 4 * i)} * width;
      if (at + width > states[t].size()) return DataLossError("byte {} is outside its tensor", at);
      std::memcpy(states[t].data() + at, values.data() + i * width, width);
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
