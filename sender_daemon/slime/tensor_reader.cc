#include "sender_daemon/slime/tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

std::vector<RankSlice> SlicesOf(const RankLayout& layout, const std::vector<uint32_t>& shards) {
  std::vector<RankSlice> slices;
  for (const uint32_t number : shards) {
    const Shard& shard = layout.shards()[number];
    DWS_CHECK(shard.first_slice == 0 && shard.slice_count == shard.tensor.SliceCount());
    const RankSlice first = *layout.Find(shard.tensor.name, 0);
    for (uint32_t s = 0; s < shard.slice_count; ++s) slices.emplace_back(first.value() + s);
  }
  return slices;
}

}  // namespace

TensorReader::TensorReader(RankStatePtr state, RetainedVersionPtr version,
                           std::vector<uint32_t> shards, std::function<bool()> wanted)
    : state_(std::move(state)),
      version_(std::move(version)),
      shards_(std::move(shards)),
      wanted_(std::move(wanted)),
      reader_(state_->snapshot, state_->log, version_->version,
              SlicesOf(state_->layout(), shards_)) {}

// Relies on the reader's order: frames by slice, and in each slice from its first block on.
Result<ByteSpan> TensorReader::Next() {
  DWS_CHECK(next_ < shards_.size());
  ++next_;
  after_.resize(shard().tensor.SizeBytes());
  size_t filled = 0;
  while (filled < after_.size()) {
    if (next_frame_ == frames_.size()) {
      DWS_ASSIGN_OR_RETURN(frames_, reader_.NextWhile(wanted_));
      next_frame_ = 0;
      DWS_CHECK(!frames_.empty());
    }
    DWS_CHECK(state_->layout().slice(frames_[next_frame_].slice).shard == shards_[next_ - 1]);
    const ByteSpan content = frames_[next_frame_++].content;
    DWS_CHECK(content.size() <= after_.size() - filled);
    std::memcpy(after_.data() + filled, content.data(), content.size());
    filled += content.size();
  }
  DWS_RETURN_IF_ERROR(ForEachSlice([&](RankSlice slice, size_t offset, size_t size_bytes) {
    return Check(slice, ByteSpan(after_).subspan(offset, size_bytes),
                 version_->after[slice.value()]);
  }));
  return RowMajor(shard().tensor, after_, row_major_);
}

Result<ByteSpan> TensorReader::Before() {
  DWS_CHECK(next_ > 0 && version_->base.has_value());
  DWS_CHECK(after_.size() == shard().tensor.SizeBytes());
  const RankLayout& layout = state_->layout();
  before_ = after_;
  const Status undone =
      ForEachSlice([&](RankSlice slice, size_t offset, size_t size_bytes) -> Status {
        const auto& touched = version_->manifest.slices;
        const auto delta = std::lower_bound(
            touched.begin(), touched.end(), slice,
            [](const SliceDelta& entry, RankSlice wanted) { return entry.slice < wanted; });
        if (delta == touched.end() || delta->slice != slice) return OkStatus();
        const MutableByteSpan bytes = MutableByteSpan(before_).subspan(offset, size_bytes);
        DWS_RETURN_IF_ERROR(
            UndoBlocks(*version_, layout, slice, 0, layout.slice(slice).blocks, bytes, undo_));
        return Check(slice, bytes, delta->before);
      });
  DWS_RETURN_IF_ERROR(undone);
  return RowMajor(shard().tensor, before_, row_major_before_);
}

Status TensorReader::Check(RankSlice slice, ByteSpan bytes, const Digest& expected) const {
  const RankLayout::SliceEntry& entry = state_->layout().slice(slice);
  if (DigestBytes(bytes, entry.first_word) == expected) return OkStatus();
  return DataLossError(
      "slice {} of tensor '{}' is not what it was when version {} was published: the sender's "
      "memory "
      "is damaged; `dwsctl verify` compares all of it",
      entry.slice, shard().tensor.name, version_->version.value());
}

template <typename Fn>
Status TensorReader::ForEachSlice(Fn&& fn) const {
  const RankSlice first = *state_->layout().Find(shard().tensor.name, 0);
  size_t offset = 0;
  for (uint32_t s = 0; s < shard().slice_count; ++s) {
    const RankSlice slice(first.value() + s);
    const size_t size_bytes = state_->layout().slice(slice).size_bytes();
    DWS_RETURN_IF_ERROR(fn(slice, offset, size_bytes));
    offset += size_bytes;
  }
  DWS_CHECK(offset == after_.size());
  return OkStatus();
}

ByteSpan RowMajor(const TensorSpec& tensor, ByteSpan slices, std::vector<std::byte>& buffer) {
  DWS_CHECK(slices.size() == tensor.SizeBytes());
  if (tensor.SliceCount() == 1) return slices;
  uint64_t rows = 1;  // over the dimensions before the cut one
  for (uint32_t dim = 0; dim < tensor.cut_dim; ++dim) rows *= tensor.shape[dim];
  if (rows == 1) return slices;
  uint64_t inner = ElementBytes(tensor.dtype);
  for (size_t dim = tensor.cut_dim + 1; dim < tensor.shape.size(); ++dim) {
    inner *= tensor.shape[dim];
  }
  buffer.resize(slices.size());
  const uint64_t row_bytes = tensor.shape[tensor.cut_dim] * inner;
  const std::byte* from = slices.data();
  for (uint32_t s = 0; s < tensor.SliceCount(); ++s) {
    const SliceRange range = tensor.Slice(s);
    const uint64_t run = (range.end - range.begin) * inner;
    for (uint64_t row = 0; row < rows; ++row, from += run) {
      std::memcpy(buffer.data() + row * row_bytes + range.begin * inner, from, run);
    }
  }
  DWS_CHECK(from == slices.data() + slices.size());
  return buffer;
}

}  // namespace dws
