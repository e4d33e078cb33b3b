// weight_v000010/model-00000-of-00001.safetensors and its index. Level 1, content size in the
// frame, XXH3 128 of the new bytes as the checksum.
#include <map>

#include "common/formats/safetensors/header.h"
#include "common/formats/slime_delta/digest/checksum.h"
#include "common/formats/slime_delta/payload.h"
#include "common/formats/slime_delta/version_index.h"
#include "tools/bench/peers/peer.h"

namespace dws::bench {
namespace {

using slime::ChecksumFormat;
using slime::Encoding;

constexpr uint64_t kVersion = 10;
const char* const kFile = "model-00000-of-00001.safetensors";

// The file, followed by its index.
Result<std::vector<std::byte>> Encode(std::span<const TensorPair> tensors, Encoding encoding) {
  slime::VersionIndex index{
      .version = kVersion,
      .delta = slime::DeltaDescription{.base_version = kVersion - 1, .encoding = encoding}};
  safetensors::Metadata digests;
  std::vector<std::vector<std::byte>> entries;
  std::vector<safetensors::TensorBytesView> views;
  for (const TensorPair& tensor : tensors) {
    if (tensor.before == tensor.after) continue;
    DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> payload,
                         slime::EncodePayload(encoding, tensor.before, tensor.after));
    entries.push_back(slime::CompressEntry(payload));
    digests[tensor.spec.name] = slime::ChecksumText(ChecksumFormat::kXxh3, tensor.after);
    views.push_back({.name = tensor.spec.name, .shape = {entries.back().size()}});
    index.weight_map[tensor.spec.name] = kFile;
  }
  for (size_t i = 0; i < entries.size(); ++i) views[i].bytes = entries[i];
  DWS_ASSIGN_OR_RETURN(std::vector<std::byte> bytes, safetensors::MakeFile(digests, views));
  DWS_ASSIGN_OR_RETURN(const std::string text, slime::MakeVersionIndex(index));
  const ByteSpan tail = AsBytes(text);
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return bytes;
}

// The size of the safetensors file in front of the index.
ByteSpan FileOf(ByteSpan bytes) {
  const size_t index = AsText(bytes).rfind("{\n \"metadata\"");
  return index == std::string_view::npos ? bytes : bytes.first(index);
}

Status Decode(ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states,
              Encoding encoding) {
  const ByteSpan file = FileOf(bytes);
  DWS_ASSIGN_OR_RETURN(const safetensors::Header header, safetensors::ParseHeader(file, kFile));
  std::map<std::string_view, ByteSpan> entries;
  for (const safetensors::HeaderTensor& tensor : header.tensors) {
    entries[tensor.name] = header.BytesOf(tensor, file);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].spec.name;
    const auto digest = header.metadata.find(name);
    if (digest == header.metadata.end()) continue;  // unchanged
    DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> payload,
                         slime::DecodeEntry(encoding, entries[name], states[i].size()));
    DWS_RETURN_IF_ERROR(slime::ApplyPayload(encoding, payload, states[i]));
    if (slime::ChecksumText(ChecksumFormat::kXxh3, states[i]) != digest->second) {
      return DataLossError("'{}' has another checksum than its file says", name);
    }
  }
  return OkStatus();
}

}  // namespace

Peer SlimeXor() {
  return {.id = "P2a",
          .name = "slime format B: xor + zstd-1",
          .bar = AtLeast(2.9),
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            return Encode(tensors, Encoding::kXor);
          },
          .decode =
              [](ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states) {
                return Decode(bytes, tensors, states, Encoding::kXor);
              }};
}

Peer SlimeOverwrite() {
  return {.id = "P2c",
          .name = "slime format B: overwrite + zstd-1",
          .bar = std::nullopt,
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            return Encode(tensors, Encoding::kOverwrite);
          },
          .decode =
              [](ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states) {
                return Decode(bytes, tensors, states, Encoding::kOverwrite);
              }};
}

}  // namespace dws::bench
