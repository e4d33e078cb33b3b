#include "common/model/layout.h"

#include <algorithm>
#include <string>

#include "common/model/limits.h"

namespace dws {
namespace {

void AppendNumber(std::string& text, uint64_t number) {
  std::byte bytes[8];
  StoreLe(bytes, number);
  text.append(AsText(bytes));
}

// Each field of variable length follows its length, so no two layouts have the same text.
std::string SignatureText(const std::vector<Shard>& shards) {
  std::string text;
  for (const Shard& shard : shards) {
    const TensorSpec& tensor = shard.tensor;
    AppendNumber(text, tensor.name.size());
    text += tensor.name;
    AppendNumber(text, static_cast<uint64_t>(tensor.dtype));
    AppendNumber(text, tensor.shape.size());
    for (const uint64_t extent : tensor.shape) AppendNumber(text, extent);
    AppendNumber(text, tensor.cut_dim);
    AppendNumber(text, tensor.cuts.size());
    for (const uint64_t cut : tensor.cuts) AppendNumber(text, cut);
    AppendNumber(text, shard.first_slice);
    AppendNumber(text, shard.slice_count);
  }
  return text;
}

}  // namespace

Result<RankLayout> RankLayout::Create(std::vector<Shard> shards) {
  if (shards.empty()) return InvalidArgumentError("a layout has no tensors, expected at least one");
  if (shards.size() > limits::kTensorsMax) {
    return InvalidArgumentError("a layout has {} tensors, at most {} are supported", shards.size(),
                                limits::kTensorsMax);
  }
  RankLayout layout;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Shard& shard = shards[i];
    DWS_RETURN_IF_ERROR(Validate(shard.tensor));
    if (i > 0 && shards[i - 1].tensor.name >= shard.tensor.name) {
      return InvalidArgumentError("tensor '{}' follows '{}', expected names strictly ascending",
                                  shard.tensor.name, shards[i - 1].tensor.name);
    }
    const uint32_t slice_count = shard.tensor.SliceCount();
    if (shard.slice_count == 0 || shard.first_slice >= slice_count ||
        shard.slice_count > slice_count - shard.first_slice) {
      return InvalidArgumentError("tensor '{}': slices {} + {} are outside its {} slices",
                                  shard.tensor.name, shard.first_slice, shard.slice_count,
                                  slice_count);
    }
    if (layout.slices_.size() + shard.slice_count > limits::kSlicesMax) {
      return InvalidArgumentError("a layout has more than {} slices", limits::kSlicesMax);
    }
    layout.shard_first_.push_back(static_cast<uint32_t>(layout.slices_.size()));
    uint64_t first_word = shard.tensor.SliceFirstWord(shard.first_slice);
    for (uint32_t s = shard.first_slice; s < shard.first_slice + shard.slice_count; ++s) {
      SliceEntry entry{.shard = static_cast<uint32_t>(i),
                       .slice = s,
                       .dtype = shard.tensor.dtype,
                       .elements = shard.tensor.SliceElements(s),
                       .blocks = shard.tensor.SliceBlocks(s),
                       .first_word = first_word,
                       .first_block = layout.block_count_};
      first_word += CeilDiv(entry.size_bytes(), 8);
      layout.element_count_ += entry.elements;
      layout.size_bytes_ += entry.size_bytes();
      layout.block_count_ += entry.blocks;
      layout.slices_.push_back(entry);
    }
  }
  layout.signature_ = DigestBytes(AsBytes(SignatureText(shards)), 0);
  layout.shards_ = std::move(shards);
  return layout;
}

std::optional<RankSlice> RankLayout::Find(std::string_view name, uint32_t slice) const {
  const auto found = std::lower_bound(
      shards_.begin(), shards_.end(), name,
      [](const Shard& shard, std::string_view wanted) { return shard.tensor.name < wanted; });
  if (found == shards_.end() || found->tensor.name != name) return std::nullopt;
  if (slice < found->first_slice || slice - found->first_slice >= found->slice_count)
    return std::nullopt;
  return RankSlice(shard_first_[static_cast<size_t>(found - shards_.begin())] + slice -
                   found->first_slice);
}

Digest StateToken(const std::vector<Digest>& slice_digests) {
  return DigestBytes(std::as_bytes(std::span(slice_digests)), 0);
}

}  // namespace dws
