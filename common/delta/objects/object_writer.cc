#include "common/delta/objects/object_writer.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/frame_header.h"
#include "common/delta/objects/object.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// A frame may not contain so many empty blocks in a row, so a run of this length ends the frame.
constexpr size_t kEmptyRun = 64;

// About what a block takes in the index of its frame.
constexpr uint64_t kRowBytes = 8;
constexpr uint64_t kSpareBytes = 4096;

// Returns whether a frame of the first `count` of `blocks` is final, whatever blocks follow.
bool IsSettled(std::span<const EncodedBlock> blocks, size_t count) {
  if (blocks.size() >= count + kEmptyRun) return true;
  return std::any_of(blocks.begin() + static_cast<ptrdiff_t>(count), blocks.end(),
                     [](const EncodedBlock& block) { return block.mode != BlockMode::kEmpty; });
}

}  // namespace

ObjectWriter::ObjectWriter()
    : ObjectWriter([this](ByteSpan frame) {
        frames_.insert(frames_.end(), frame.begin(), frame.end());
        return OkStatus();
      }) {}

Status ObjectWriter::Add(EncodedBlock block) {
  if (pending_.empty() && block.mode == BlockMode::kEmpty) {
    ++first_pending_;  // frames begin with a block that is not empty
    return OkStatus();
  }
  pending_bytes_ += block.payload.size();
  pending_.push_back(std::move(block));
  // So many bytes do not fit into one frame. So many blocks may fit; then try_at_blocks_ grows, so
  // that later tries are rarer.
  const bool full = pending_bytes_ >= limits::kFrameBytesMax || pending_.size() >= try_at_blocks_;
  return full ? CutPending(false) : OkStatus();
}

Status ObjectWriter::CutPending(bool slice_ends) {
  DWS_ASSIGN_OR_RETURN(const size_t done, WriteFrames(pending_, first_pending_, slice_ends));
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(done));
  first_pending_ += static_cast<uint32_t>(done);
  pending_bytes_ = 0;
  for (const EncodedBlock& block : pending_) pending_bytes_ += block.payload.size();
  try_at_blocks_ = std::max(kTryAtBlocks, 2 * pending_.size());
  return OkStatus();
}

Result<size_t> ObjectWriter::WriteFrames(std::span<const EncodedBlock> blocks, uint32_t first,
                                         bool slice_ends) {
  size_t done = 0;
  while (true) {
    while (done < blocks.size() && blocks[done].mode == BlockMode::kEmpty) ++done;
    const std::span<const EncodedBlock> rest = blocks.subspan(done);
    if (rest.empty()) return done;
    const size_t count = BlocksOfNextFrame(rest);
    DWS_CHECK(count > 0 && count <= rest.size());
    if (!slice_ends && !IsSettled(rest, count)) return done;
    DWS_RETURN_IF_ERROR(WriteFrame(rest.first(count), first + static_cast<uint32_t>(done)));
    done += count;
  }
}

Status ObjectWriter::WriteFrame(std::span<const EncodedBlock> blocks, uint32_t first) {
  const std::vector<std::byte> frame = BuildFrame(blocks);
  slice_.frames.push_back({.first_block = first,
                           .block_count = static_cast<uint32_t>(blocks.size()),
                           .offset = frames_bytes_,
                           .size_bytes = frame.size(),
                           .checksum = FrameChecksum(frame)});
  for (const EncodedBlock& block : blocks) {
    slice_.nnz += block.nnz;
    split_ |= block.mode == BlockMode::kClassSplit;
  }
  frames_bytes_ += frame.size();
  return sink_(frame);
}

Status ObjectWriter::AddSlice(const SliceEnd& end, std::span<const EncodedBlock> blocks) {
  DWS_CHECK(pending_.empty() && first_pending_ == 0);
  DWS_RETURN_IF_ERROR(WriteFrames(blocks, 0, true).status());
  return EndSlice(end);
}

Status ObjectWriter::AddSealed(const SliceEnd& end, const SealedSlice& sealed) {
  DWS_CHECK(pending_.empty() && first_pending_ == 0 && sealed.delta.slice == end.slice);
  for (FrameEntry entry : sealed.delta.frames) {
    const ByteSpan frame = ByteSpan(sealed.bytes).subspan(entry.offset, entry.size_bytes);
    entry.offset = frames_bytes_;
    slice_.frames.push_back(entry);
    frames_bytes_ += frame.size();
    DWS_RETURN_IF_ERROR(sink_(frame));
  }
  slice_.nnz = sealed.delta.nnz;
  split_ = sealed.delta.classes.has_value();
  return EndSlice({.slice = end.slice,
                   .before = end.before,
                   .after = end.after,
                   .classes = sealed.delta.classes});
}

void ObjectWriter::Reserve(uint64_t frames_bytes) {
  // The manifest is far smaller than the frames.
  frames_.reserve(frames_bytes + frames_bytes / 64 + kSpareBytes);
}

uint64_t ObjectWriter::EstimateBytes(std::span<const EncodedBlock> blocks) {
  uint64_t bytes = 0;
  for (const EncodedBlock& block : blocks) {
    if (block.mode != BlockMode::kEmpty) bytes += block.payload.size() + kRowBytes;
  }
  return bytes == 0 ? 0 : bytes + (1 + bytes / limits::kFrameBytesMax) * kFrameHeaderBytes;
}

SealedSlice ObjectWriter::SealSlice(RankSlice slice, std::span<const EncodedBlock> blocks,
                                    const std::optional<ClassTable>& classes) {
  ObjectWriter writer;
  if (const uint64_t bytes = EstimateBytes(blocks); bytes > 0) writer.frames_.reserve(bytes);
  const Status added = writer.AddSlice({.slice = slice, .classes = classes}, blocks);
  DWS_CHECK(added.ok() && writer.slices_.size() <= 1);  // in memory
  if (writer.slices_.empty()) return {.delta = {.slice = slice}};
  return {.delta = std::move(writer.slices_.front()), .bytes = std::move(writer.frames_)};
}

Status ObjectWriter::NameSlice(const SliceEnd& end) {
  DWS_CHECK(pending_.empty() && first_pending_ == 0);
  const EncodedBlock empty;
  DWS_RETURN_IF_ERROR(WriteFrame(std::span(&empty, 1), 0));
  return EndSlice(end);
}

Status ObjectWriter::EndSlice(const SliceEnd& end) {
  DWS_RETURN_IF_ERROR(CutPending(true));
  DWS_CHECK(pending_.empty());
  if (!slice_.frames.empty()) {
    DWS_CHECK(slices_.empty() || slices_.back().slice < end.slice);
    slice_.slice = end.slice;
    slice_.before = end.before;
    slice_.after = end.after;
    if (split_) slice_.classes = end.classes;
    slices_.push_back(std::move(slice_));
  }
  slice_ = SliceDelta();
  split_ = false;
  first_pending_ = 0;
  return OkStatus();
}

std::vector<std::byte> ObjectWriter::Finish(DeltaManifest identity) {
  identity.slices = std::move(slices_);
  const std::vector<std::byte> head = BuildObjectHead(identity, frames_bytes_);
  if (frames_.capacity() - frames_.size() >= head.size()) {  // Reserve
    frames_.insert(frames_.begin(), head.begin(), head.end());
    return std::move(frames_);
  }
  std::vector<std::byte> object;
  object.reserve(head.size() + frames_.size());
  object.insert(object.end(), head.begin(), head.end());
  object.insert(object.end(), frames_.begin(), frames_.end());
  return object;
}

}  // namespace dws
