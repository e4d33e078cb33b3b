#include "tools/checkpoint/parts/tensors.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws::checkpoint {
namespace {

std::string Describe(const CheckpointTensor& tensor) {
  return fmt::format("{} [{}]", safetensors::NameOf(tensor.dtype), fmt::join(tensor.shape, ", "));
}

DType UnsignedOf(uint32_t bits) {
  switch (bits) {
    case 64:
      return DType::kU64;
    case 32:
      return DType::kU32;
    case 16:
      return DType::kU16;
    default:
      return DType::kU8;
  }
}

}  // namespace

TensorSpec CodecSpec(const CheckpointTensor& tensor) {
  const std::optional<DType> known = safetensors::ModelDType(tensor.dtype);
  const uint32_t bits = safetensors::ElementBits(tensor.dtype);
  TensorSpec spec{.name = tensor.name, .dtype = known.value_or(UnsignedOf(bits))};
  // Elements of 4 or 6 bits are packed across bytes, so only a flat shape of bytes fits them.
  spec.shape = bits >= 8 ? tensor.shape : std::vector<uint64_t>{tensor.bytes.size()};
  return spec;
}

Result<RankLayout> LayoutOf(std::span<const CheckpointTensor* const> tensors) {
  std::vector<Shard> shards;
  shards.reserve(tensors.size());
  for (const CheckpointTensor* tensor : tensors) shards.push_back({.tensor = CodecSpec(*tensor)});
  DWS_ASSIGN_OR_RETURN(RankLayout layout, RankLayout::Create(std::move(shards)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    DWS_CHECK(layout.slices()[i].size_bytes() == tensors[i]->bytes.size());
  }
  return layout;
}

Result<RankLayout> LayoutOf(const Checkpoint& checkpoint) {
  std::vector<const CheckpointTensor*> tensors;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) tensors.push_back(&tensor);
  return LayoutOf(tensors);
}

std::vector<ByteSpan> BytesOf(const Checkpoint& checkpoint) {
  std::vector<ByteSpan> bytes;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) bytes.push_back(tensor.bytes);
  return bytes;
}

TensorPairs MatchTensors(const Checkpoint& a, const Checkpoint& b) {
  TensorPairs pairs;
  auto left = a.tensors().begin();
  auto right = b.tensors().begin();
  while (left != a.tensors().end() || right != b.tensors().end()) {
    if (right == b.tensors().end() || (left != a.tensors().end() && left->name < right->name)) {
      pairs.mismatches.push_back({.name = left->name, .what = "only in A"});
      ++left;
    } else if (left == a.tensors().end() || right->name < left->name) {
      pairs.mismatches.push_back({.name = right->name, .what = "only in B"});
      ++right;
    } else {
      if (left->dtype == right->dtype && left->shape == right->shape) {
        pairs.before.push_back(&*left);
        pairs.after.push_back(&*right);
      } else {
        pairs.mismatches.push_back(
            {.name = left->name,
             .what = fmt::format("{} in A, {} in B", Describe(*left), Describe(*right))});
      }
      ++left;
      ++right;
    }
  }
  return pairs;
}

std::string NameList(std::span<const std::string> names) {
  const size_t shown = std::min(names.size(), limits::kTensorsNamedMax);
  std::string text;
  for (size_t i = 0; i < shown; ++i) text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[i]);
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace dws::checkpoint
