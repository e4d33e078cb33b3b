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
    DWS_CHECK(shard.IsWhole());
    const RankSlice first = *layout.Find(shard.tensor.name, 0);
    for (uint32_t s = 0; s < shard.tensor.SliceCount(); ++s) slices.emplace_back(first.value() + s);
  }
  return slices;
}

// Calls fn(first element, elements) for each run of the tensor's row-major order that a slice is,
// in slice order.
template <typename Fn>
void ForEachRun(const TensorSpec& tensor, uint32_t slice, Fn&& fn) {
  const std::vector<DimRange> ranges = tensor.Slice(slice);
  const std::vector<uint64_t> strides = RowMajorStrides(tensor.shape);
  const size_t inner = tensor.cuts.back().dim;  // from here on a run
  const uint64_t run = ranges[inner].size() * strides[inner];
  std::vector<uint64_t> at(inner);  // in the dimensions before, from the range's begin
  for (uint64_t left = tensor.SliceElements(slice); left > 0; left -= run) {
    uint64_t first = ranges[inner].begin * strides[inner];
    for (size_t dim = 0; dim < inner; ++dim) first += (ranges[dim].begin + at[dim]) * strides[dim];
    fn(first, run);
    for (size_t dim = inner; dim-- > 0 && ++at[dim] == ranges[dim].size();) at[dim] = 0;
  }
}

}  // namespace

TensorReader::TensorReader(RankStatePtr state, RetainedVersionPtr version,
                           std::vector<uint32_t> shards, std::function<bool()> wanted)
    : state_(std::move(state)),
      version_(std::move(version)),
      shards_(std::move(shards)),
      wanted_(std::move(wanted)),
      reader_(state_->snapshot, state_->log, version_->version,
              WholeSlices(state_->layout(), SlicesOf(state_->layout(), shards_))) {}

// Relies on the reader's order: frames by slice, and in each slice from its first block on.
template <typename Fn>
Status TensorReader::ReadFrames(Fn&& fn) {
  DWS_CHECK(next_ < shards_.size());
  ++next_;
  const RankLayout& layout = state_->layout();
  Digest digest;
  for (uint64_t left = shard().tensor.SizeBytes(); left > 0;) {
    if (next_frame_ == frames_.size()) {
      DWS_ASSIGN_OR_RETURN(frames_, reader_.NextWhile(wanted_));
      next_frame_ = 0;
      DWS_CHECK(!frames_.empty());
    }
    const FullFrame& frame = frames_[next_frame_++];
    const RankLayout::SliceEntry& slice = layout.slice(frame.slice);
    DWS_CHECK(slice.shard == shards_[next_ - 1] && frame.content.size() <= left);
    left -= frame.content.size();
    digest += DigestBytes(frame.content, slice.BlockFirstWord(frame.entry.first_block));
    DWS_RETURN_IF_ERROR(fn(frame));
    if (frame.entry.first_block + frame.entry.block_count < slice.blocks) continue;
    DWS_RETURN_IF_ERROR(CheckDigest(frame.slice, digest, version_->after[frame.slice.value()]));
    digest = {};
  }
  return OkStatus();
}

Result<ByteSpan> TensorReader::Next() {
  DWS_CHECK(next_ < shards_.size());
  after_.resize(state_->layout().shards()[shards_[next_]].tensor.SizeBytes());
  size_t filled = 0;
  DWS_RETURN_IF_ERROR(ReadFrames([&](const FullFrame& frame) {
    std::memcpy(after_.data() + filled, frame.content.data(), frame.content.size());
    filled += frame.content.size();
    return OkStatus();
  }));
  return RowMajor(shard().tensor, after_, row_major_);
}

Status TensorReader::NextChange(const OnPiece& fn) {
  DWS_CHECK(next_ < shards_.size() && version_->base.has_value());
  const TensorSpec& tensor = state_->layout().shards()[shards_[next_]].tensor;
  const bool whole = !SlicesAreRows(tensor);
  if (whole) {
    after_.resize(tensor.SizeBytes());
    before_.resize(tensor.SizeBytes());
  }
  size_t filled = 0;
  const auto take = [&](const FullFrame& frame) -> Status {
    const size_t size = frame.content.size();
    before_.resize(std::max(before_.size(), size));
    const MutableByteSpan before = MutableByteSpan(before_).subspan(filled, size);
    DWS_RETURN_IF_ERROR(Undo(frame, before));
    if (whole) {
      std::memcpy(after_.data() + filled, frame.content.data(), size);
      filled += size;
    } else {
      fn(before, frame.content);
    }
    return OkStatus();
  };
  DWS_RETURN_IF_ERROR(ReadFrames(take));
  if (whole) {
    fn(RowMajor(tensor, before_, row_major_before_), RowMajor(tensor, after_, row_major_));
  }
  return OkStatus();
}

Status TensorReader::NextChangeFrom(const ReadBefore& read, const OnPiece& fn) {
  DWS_CHECK(next_ < shards_.size());
  if (!SlicesAreRows(state_->layout().shards()[shards_[next_]].tensor)) {
    DWS_ASSIGN_OR_RETURN(const ByteSpan after, Next());
    before_.resize(after.size());
    DWS_RETURN_IF_ERROR(read(0, before_));
    fn(before_, after);
    return OkStatus();
  }
  uint64_t offset = 0;
  return ReadFrames([&](const FullFrame& frame) -> Status {
    before_.resize(frame.content.size());
    DWS_RETURN_IF_ERROR(read(offset, before_));
    offset += before_.size();
    fn(before_, frame.content);
    return OkStatus();
  });
}

Status TensorReader::Undo(const FullFrame& frame, MutableByteSpan before) {
  const FrameEntry& at = frame.entry;
  if (at.first_block == 0) before_digest_ = {};
  std::memcpy(before.data(), frame.content.data(), before.size());
  const auto& touched = version_->manifest.slices;
  const auto delta =
      std::lower_bound(touched.begin(), touched.end(), frame.slice,
                       [](const SliceDelta& one, RankSlice wanted) { return one.slice < wanted; });
  if (delta == touched.end() || delta->slice != frame.slice) return OkStatus();
  const RankLayout& layout = state_->layout();
  DWS_RETURN_IF_ERROR(
      UndoBlocks(*version_, layout, frame.slice, at.first_block, at.block_count, before, undo_));
  const RankLayout::SliceEntry& slice = layout.slice(frame.slice);
  before_digest_ += DigestBytes(before, slice.BlockFirstWord(at.first_block));
  if (at.first_block + at.block_count < slice.blocks) return OkStatus();
  return CheckDigest(frame.slice, before_digest_, delta->before);
}

Status TensorReader::CheckDigest(RankSlice slice, const Digest& found,
                                 const Digest& expected) const {
  if (found == expected) return OkStatus();
  const RankLayout::SliceEntry& entry = state_->layout().slice(slice);
  return DataLossError(
      "slice {} of tensor '{}' is not what it was when version {} was published: the sender's "
      "memory is damaged; `dwsctl verify` compares all of it",
      entry.slice, shard().tensor.name, version_->version.value());
}

bool SlicesAreRows(const TensorSpec& tensor) {
  if (tensor.cuts.empty()) return true;
  // The slices are rows only if the dimensions before the first cut have size 1, so that the slices
  // are not passed through several times.
  const auto before = tensor.shape.begin() + tensor.cuts[0].dim;
  return tensor.cuts.size() == 1 &&
         std::all_of(tensor.shape.begin(), before, [](uint64_t extent) { return extent == 1; });
}

ByteSpan RowMajor(const TensorSpec& tensor, ByteSpan slices, std::vector<std::byte>& buffer) {
  DWS_CHECK(slices.size() == tensor.SizeBytes());
  if (SlicesAreRows(tensor)) return slices;
  buffer.resize(slices.size());
  const std::byte* from = slices.data();
  for (uint32_t s = 0; s < tensor.SliceCount(); ++s) {
    ForEachRun(tensor, s, [&](uint64_t first_element, uint64_t elements) {
      const size_t bytes = elements * ElementBytes(tensor.dtype);
      std::memcpy(buffer.data() + first_element * ElementBytes(tensor.dtype), from, bytes);
      from += bytes;
    });
  }
  DWS_CHECK(from == slices.data() + slices.size());
  return buffer;
}

}  // namespace dws
