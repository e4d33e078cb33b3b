#include "common/model/layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/model/identity_limits.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr uint64_t kGridMark = 256;
static_assert(kGridMark > limits::kTensorRankMax);
constexpr uint64_t kViewMark = uint64_t{1} << 32;

void AppendNumber(std::string& text, uint64_t number) {
  std::byte bytes[8];
  StoreLe(bytes, number);
  text.append(AsText(bytes));
}

// A shard with at most one cut dimension is written as in layout format 1. One with more begins
// with a number that cannot be a dimension.
void AppendCells(std::string& text, const Shard& shard) {
  const std::vector<Cuts>& cuts = shard.tensor.cuts;
  if (cuts.size() > 1) AppendNumber(text, kGridMark + cuts.size());
  if (cuts.empty()) {
    AppendNumber(text, 0);
    AppendNumber(text, 0);
  }
  for (const Cuts& along : cuts) {
    AppendNumber(text, along.dim);
    AppendNumber(text, along.at.size());
    for (const uint64_t cut : along.at) AppendNumber(text, cut);
  }
  for (const CellRange& range : cuts.empty() ? CellBox{{}} : shard.cells) {
    AppendNumber(text, range.first);
    AppendNumber(text, range.count);
  }
}

// Each field of variable length follows its length, so no two layouts have the same text.
std::string SignatureText(const std::vector<Shard>& shards, const std::string& view) {
  std::string text;
  if (!view.empty()) {  // no name is so long
    AppendNumber(text, kViewMark + view.size());
    text += view;
  }
  for (const Shard& shard : shards) {
    const TensorSpec& tensor = shard.tensor;
    AppendNumber(text, tensor.name.size());
    text += tensor.name;
    AppendNumber(text, static_cast<uint64_t>(tensor.dtype));
    AppendNumber(text, tensor.shape.size());
    for (const uint64_t extent : tensor.shape) AppendNumber(text, extent);
    AppendCells(text, shard);
  }
  return text;
}

}  // namespace

Shard Shard::Whole(TensorSpec tensor) {
  CellBox cells = AllCells(tensor);
  return {.tensor = std::move(tensor), .cells = std::move(cells)};
}

Result<RankLayout> RankLayout::Create(std::vector<Shard> shards, std::string view) {
  if (view.size() > limits::kViewNameBytesMax) {
    return InvalidArgumentError("a view's name has {} bytes, at most {} are supported", view.size(),
                                limits::kViewNameBytesMax);
  }
  if (shards.empty()) return InvalidArgumentError("a layout has no tensors, expected at least one");
  if (shards.size() > limits::kTensorsMax) {
    return InvalidArgumentError("a layout has {} tensors, at most {} are supported", shards.size(),
                                limits::kTensorsMax);
  }
  RankLayout layout;
  uint64_t numbered = 0;  // slices that FirstWords goes through
  for (size_t i = 0; i < shards.size(); ++i) {
    const Shard& shard = shards[i];
    DWS_RETURN_IF_ERROR(Validate(shard.tensor));
    if (i > 0 && shards[i - 1].tensor.name >= shard.tensor.name) {
      return InvalidArgumentError("tensor '{}' follows '{}', expected names strictly ascending",
                                  shard.tensor.name, shards[i - 1].tensor.name);
    }
    DWS_RETURN_IF_ERROR(CheckCells(shard.tensor, shard.cells));
    if (!shard.tensor.HasWholeWords()) numbered += shard.tensor.SliceCount();
    if (layout.slices_.size() + CellCount(shard.cells) > limits::kSlicesMax) {
      return InvalidArgumentError(
          "a layout has more than {} slices of this rank, tensor '{}' among them ({}): declare "
          "fewer cuts, or more trainer ranks",
          limits::kSlicesMax, shard.tensor.name, ToString(shard.tensor));
    }
    if (numbered > limits::kNumberedSlicesMax) {
      return InvalidArgumentError(
          "the tensors of a layout whose slices are no multiples of 8 bytes have more than {} "
          "slices "
          "on all ranks, tensor '{}' among them ({}): cut them at multiples of 8 bytes, or declare "
          "fewer cuts",
          limits::kNumberedSlicesMax, shard.tensor.name, ToString(shard.tensor));
    }
    layout.Append(static_cast<uint32_t>(i), shard);
  }
  layout.signature_ = DigestBytes(AsBytes(SignatureText(shards, view)), 0);
  layout.view_ = std::move(view);
  layout.shards_ = std::move(shards);
  return layout;
}

void RankLayout::Append(uint32_t number, const Shard& shard) {
  shard_first_.push_back(slice_count());
  const std::vector<uint32_t> slices = SlicesIn(shard.tensor, shard.cells);
  const std::vector<uint64_t> first_words = shard.tensor.FirstWords(slices);
  for (size_t i = 0; i < slices.size(); ++i) {
    const uint32_t s = slices[i];
    const uint64_t elements = shard.tensor.SliceElements(s);
    const SliceEntry entry{
        .shard = number,
        .slice = s,
        .dtype = shard.tensor.dtype,
        .elements = elements,
        .blocks = static_cast<uint32_t>(CeilDiv(elements, limits::kBlockElements)),
        .first_word = first_words[i],
        .first_block = block_count_};
    element_count_ += entry.elements;
    size_bytes_ += entry.size_bytes();
    block_count_ += entry.blocks;
    slices_.push_back(entry);
  }
}

std::optional<RankSlice> RankLayout::Find(std::string_view name, uint32_t slice) const {
  const auto found = std::lower_bound(
      shards_.begin(), shards_.end(), name,
      [](const Shard& shard, std::string_view wanted) { return shard.tensor.name < wanted; });
  if (found == shards_.end() || found->tensor.name != name) return std::nullopt;
  const std::optional<uint32_t> number = NumberIn(found->tensor, found->cells, slice);
  if (!number.has_value()) return std::nullopt;
  return RankSlice(shard_first_[static_cast<size_t>(found - shards_.begin())] + *number);
}

Digest StateToken(const std::vector<Digest>& slice_digests) {
  return DigestBytes(std::as_bytes(std::span(slice_digests)), 0);
}

}  // namespace dws
