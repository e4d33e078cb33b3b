#include "tools/checkpoint/object_writer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/delta/objects/frame.h"
#include "common/delta/objects/object.h"
#include "common/model/limits.h"

namespace dws::checkpoint {
namespace {

// More empty blocks than a frame may contain in a row, so that such a run makes the frame final.
constexpr size_t kEmptyRun = 64;

}  // namespace

Status ObjectWriter::Add(EncodedBlock block) {
  if (pending_.empty() && block.mode == BlockMode::kEmpty) {
    ++first_pending_;  // frames begin with a block that is not empty
    return OkStatus();
  }
  split_ |= block.mode == BlockMode::kClassSplit;
  pending_bytes_ += block.payload.size();
  pending_.push_back(std::move(block));
  // So many bytes do not fit into one frame. So many blocks may fit; then try_at_blocks_ grows, so
  // that later tries are rarer.
  const bool full = pending_bytes_ >= limits::kFrameBytesMax || pending_.size() >= try_at_blocks_;
  return full ? CutFrames(false) : OkStatus();
}

bool ObjectWriter::IsSettled(size_t count) const {
  const size_t end = std::min(pending_.size(), count + kEmptyRun);
  if (end == count + kEmptyRun) return true;
  return std::any_of(pending_.begin() + static_cast<ptrdiff_t>(count), pending_.end(),
                     [](const EncodedBlock& block) { return block.mode != BlockMode::kEmpty; });
}

Status ObjectWriter::CutFrames(bool slice_ends) {
  while (!pending_.empty()) {
    const size_t count = BlocksOfNextFrame(pending_);
    if (!slice_ends && !IsSettled(count)) {
      try_at_blocks_ = 2 * pending_.size();
      return OkStatus();
    }
    try_at_blocks_ = kTryAtBlocks;
    DWS_RETURN_IF_ERROR(WriteFrame(count));
  }
  return OkStatus();
}

Status ObjectWriter::WriteFrame(size_t count) {
  const std::span<const EncodedBlock> blocks = std::span(pending_).first(count);
  const std::vector<std::byte> frame = BuildFrame(blocks);
  slice_.frames.push_back({.first_block = first_pending_,
                           .block_count = static_cast<uint32_t>(count),
                           .offset = frames_bytes_,
                           .size_bytes = frame.size(),
                           .checksum = FrameChecksum(frame)});
  for (const EncodedBlock& block : blocks) slice_.nnz += block.nnz;
  frames_bytes_ += frame.size();
  while (count < pending_.size() && pending_[count].mode == BlockMode::kEmpty) ++count;
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(count));
  first_pending_ += static_cast<uint32_t>(count);
  pending_bytes_ = 0;
  for (const EncodedBlock& block : pending_) pending_bytes_ += block.payload.size();
  return sink_(frame);
}

Status ObjectWriter::EndSlice(const SliceEnd& end) {
  DWS_RETURN_IF_ERROR(CutFrames(true));
  if (!slice_.frames.empty()) {
    slice_.slice = end.slice;
    slice_.before = end.before;
    slice_.after = end.after;
    if (split_) slice_.classes = end.classes;
    slices_.push_back(std::move(slice_));
  }
  slice_ = SliceDelta();
  split_ = false;
  first_pending_ = 0;
  pending_bytes_ = 0;
  return OkStatus();
}

std::vector<std::byte> ObjectWriter::Finish(DeltaManifest identity) {
  identity.slices = std::move(slices_);
  return BuildObjectHead(identity, frames_bytes_);
}

}  // namespace dws::checkpoint
