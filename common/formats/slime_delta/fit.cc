// Sizes are upper bounds: a writer may escape every character of a name, and name a file
// differently.
#include "common/formats/slime_delta/fit.h"

#include <algorithm>

#include "common/formats/slime_delta/payload.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

using safetensors::Checkpoint;
using safetensors::CheckpointTensor;
using safetensors::HeaderTensor;

constexpr uint64_t kMetadataBytes = uint64_t{1} << 20;  // of metadata that is not about tensors
constexpr uint64_t kEscapedBytes = 6;                   // "\u0061"
// Bytes that a tensor takes besides its names: in an index the file and punctuation; in a header
// dtype, shape, offsets and digest.
constexpr uint64_t kIndexEntryBytes = kEscapedBytes * 255 + 64;
constexpr uint64_t kHeaderEntryBytes = 1024;

constexpr uint64_t kTensorsSpare = 1000;  // a full version of a small checkpoint may add these

uint64_t TextBytesMax(const Checkpoint& checkpoint, uint64_t names, uint64_t entry_bytes) {
  uint64_t size_bytes = kMetadataBytes + kTensorsSpare * entry_bytes;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    size_bytes += 2 * (names * kEscapedBytes * tensor.name.size() + entry_bytes);
  }
  return size_bytes;
}

Status Lacks(const std::string& name, const VersionIndex& index) {
  return FailedPreconditionError("version {}: the local checkpoint lacks these tensors: {}",
                                 VersionText(index.version), name);
}

Status CheckEntry(const HeaderTensor& entry, const CheckpointTensor& tensor, Encoding encoding) {
  const uint64_t size_bytes_max = EntryBytesMax(encoding, tensor.size_bytes);
  if (entry.size_bytes() <= size_bytes_max) return OkStatus();
  return DataLossError("tensor '{}': an entry of {} bytes, expected at most {} for {} of {} bytes",
                       entry.name, entry.size_bytes(), size_bytes_max, NameOf(encoding),
                       tensor.size_bytes);
}

}  // namespace

safetensors::ClaimLimits IndexLimits(const Checkpoint& checkpoint) {
  return {.index_bytes_max = std::min(limits::kCheckpointIndexBytesMax,
                                      TextBytesMax(checkpoint, 1, kIndexEntryBytes)),
          .tensors_max = std::min<uint64_t>(limits::kTensorsMax,
                                            2 * checkpoint.tensors().size() + kTensorsSpare)};
}

Status CheckNames(const Checkpoint& checkpoint, const VersionIndex& index) {
  if (!index.delta.has_value()) return OkStatus();
  for (const auto& [name, file] : index.weight_map) {
    if (checkpoint.Find(name) == nullptr) return Lacks(name, index);
  }
  return OkStatus();
}

safetensors::ClaimLimits ShardLimits(const Checkpoint& checkpoint, const VersionIndex& index) {
  safetensors::ClaimLimits claims = IndexLimits(checkpoint);
  claims.header_bytes_max =
      std::min(limits::kSafetensorsHeaderBytesMax, TextBytesMax(checkpoint, 2, kHeaderEntryBytes));
  if (!index.delta.has_value()) return claims;
  claims.check_tensor = [&checkpoint, &index](const HeaderTensor& found) -> Status {
    const CheckpointTensor* const tensor = checkpoint.Find(found.name);
    if (tensor == nullptr) return Lacks(found.name, index);
    return CheckEntry(found, *tensor, index.delta->encoding);
  };
  return claims;
}

}  // namespace dws::slime
