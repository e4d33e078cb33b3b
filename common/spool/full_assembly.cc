// Digests are kept by block, because a block may come more than once.
#include "common/spool/full_assembly.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Newer blocks take a quarter of the memory that the spool may use, within these bounds.
constexpr uint64_t kNewerBytesMin = uint64_t{256} << 10;
constexpr uint64_t kNewerBytesMax = uint64_t{64} << 20;
// The object of one that is kept.
constexpr uint64_t kNewerBlockBytes = sizeof(NewerBlock) + 64;

size_t IndexOf(std::span<const RankSlice> slices, RankSlice slice) {
  const auto found = std::lower_bound(slices.begin(), slices.end(), slice);
  DWS_CHECK(found != slices.end() && *found == slice);
  return static_cast<size_t>(found - slices.begin());
}

}  // namespace

Result<std::unique_ptr<FullAssembly>> FullAssembly::Create(const FullWant& want,
                                                           Spool::Options options) {
  DWS_CHECK(want.early != nullptr || want.expected.size() == want.layout.slice_count());
  uint64_t bytes = 0;
  for (const RankSlice slice : want.slices) bytes += want.layout.slice(slice).size_bytes();
  TransferProgress* const progress = std::exchange(options.progress, nullptr);
  std::function<bool()> wanted = options.wanted;
  const uint64_t newer_bytes_max =
      std::clamp(options.memory_bytes_max / 4, kNewerBytesMin, kNewerBytesMax);
  std::unique_ptr<FullAssembly> assembly(new FullAssembly(want, Spool(std::move(options)), progress,
                                                          std::move(wanted), newer_bytes_max));
  if (want.device == nullptr) DWS_RETURN_IF_ERROR(assembly->MakeRoom());
  if (progress != nullptr) progress->total_bytes += bytes;
  return assembly;
}

Status FullAssembly::MakeRoom() {
  if (has_room_) return OkStatus();
  uint64_t bytes = 0;
  for (size_t i = 0; i < want_.slices.size(); ++i) {
    first_byte_[i] = bytes;
    if (on_device_[i] == 0) bytes += want_.layout.slice(want_.slices[i]).size_bytes();
  }
  DWS_RETURN_IF_ERROR(spool_.Allocate(bytes));
  has_room_ = true;
  return OkStatus();
}

FullAssembly::FullAssembly(const FullWant& want, Spool spool, TransferProgress* progress,
                           std::function<bool()> wanted, uint64_t newer_bytes_max)
    : want_(want),
      spool_(std::move(spool)),
      has_room_(want.direct != nullptr || want.placed != nullptr),
      progress_(progress),
      wanted_(std::move(wanted)),
      newer_bytes_max_(newer_bytes_max) {
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  for (size_t i = 0; i < want_.slices.size(); ++i) {
    DWS_CHECK(i == 0 || want_.slices[i - 1] < want_.slices[i]);
    first_block_.push_back(blocks);
    bytes += want_.layout.slice(want_.slices[i]).size_bytes();
    blocks += want_.layout.slice(want_.slices[i]).blocks;
  }
  DWS_CHECK(want_.placed == nullptr || (!direct() && want_.device == nullptr &&
                                        want_.placed->places.size() == want_.slices.size()));
  size_bytes_ = bytes;
  first_byte_.resize(want_.slices.size());
  digests_.resize(blocks);
  here_.resize(blocks);
  on_device_.resize(want_.slices.size());
  missing_blocks_ = blocks;
}

bool FullAssembly::Wants(const BlockRange& range) const {
  return IsInside(want_.layout, range) && range.block_count > 0 &&
         std::binary_search(want_.slices.begin(), want_.slices.end(), range.slice);
}

std::vector<BlockRange> FullAssembly::Missing() const {
  std::vector<BlockRange> missing;
  for (size_t i = 0; i < want_.slices.size(); ++i) {
    const uint32_t blocks = want_.layout.slice(want_.slices[i]).blocks;
    for (uint32_t block = 0; block < blocks; ++block) {
      if (here_[first_block_[i] + block] != 0) continue;
      const bool next = !missing.empty() && missing.back().slice == want_.slices[i] &&
                        missing.back().first_block + missing.back().block_count == block;
      if (next) {
        ++missing.back().block_count;
      } else {
        missing.push_back({.slice = want_.slices[i], .first_block = block, .block_count = 1});
      }
    }
  }
  return missing;
}

uint64_t MissingBytes(const FullAssembly& assembly) {
  uint64_t bytes = 0;
  for (const BlockRange& range : assembly.Missing()) bytes += SizeBytes(assembly.layout(), range);
  return bytes;
}

MutableByteSpan FullAssembly::Room(const BlockRange& range, std::vector<std::byte>& buffer) {
  DWS_CHECK(has_room_ && Wants(range));
  const uint64_t size = SizeBytes(want_.layout, range);
  if (on_device_[IndexOf(want_.slices, range.slice)] != 0) {  // it has no place here: Take drops it
    buffer.resize(size);
    return buffer;
  }
  if (direct() || want_.placed != nullptr) {
    const auto room = direct() ? MutableByteSpan()
                               : want_.placed->Whole(IndexOf(want_.slices, range.slice),
                                                     FirstByte(want_.layout, range), size);
    if (!room.empty()) return room;
    buffer.resize(size);
    return buffer;
  }
  return spool_.Room(
      first_byte_[IndexOf(want_.slices, range.slice)] + FirstByte(want_.layout, range), size,
      buffer);
}

Status FullAssembly::Keep(const BlockRange& range, uint64_t offset, ByteSpan bytes) {
  if (want_.placed != nullptr) return spool_.CheckWanted();
  if (!direct()) return spool_.Fill(offset, bytes);
  if (wanted_ && !wanted_()) return CancelledError("given up");
  if (progress_ != nullptr) progress_->direct_bytes += bytes.size();
  return want_.direct->Write(want_.rank, range, bytes);
}

Status FullAssembly::failed() const {
  MutexLock lock(mutex_);
  return failed_;
}

Status FullAssembly::Take(const BlockRange& range, ByteSpan bytes) {
  DWS_CHECK(has_room_ && Wants(range) && bytes.size() == SizeBytes(want_.layout, range));
  const size_t index = IndexOf(want_.slices, range.slice);
  if (on_device_[index] != 0) return OkStatus();
  const RankLayout::SliceEntry& slice = want_.layout.slice(range.slice);
  const uint64_t offset = first_byte_[index] + FirstByte(want_.layout, range);
  // The place of the bytes in memory; empty: it is a file, live memory, or several runs.
  MutableByteSpan room;
  std::vector<std::byte> own;
  if (want_.placed != nullptr) {
    const uint64_t at = FirstByte(want_.layout, range);
    room = want_.placed->Whole(index, at, bytes.size());
    if (room.empty()) {
      own.assign(bytes.begin(), bytes.end());  // they may change meanwhile: read once
      bytes = own;
      want_.placed->Scatter(index, at, bytes);
    }
  } else if (!direct() && !spool_.on_disk()) {
    room = spool_.memory().subspan(offset, bytes.size());
  }
  // Bytes in the assembly's memory are copied block by block below, unless they are there already.
  // So digests are of the bytes that are there, not of those that were to arrive; for a file or
  // live memory, of the bytes that were given to it.
  const bool copies = room.data() != nullptr && room.data() != bytes.data();
  Status kept = copies ? spool_.CheckWanted() : Keep(range, offset, bytes);
  if (!kept.ok()) {
    MutexLock lock(mutex_);
    failed_.Update(kept);
    return kept;
  }
  const uint64_t block_bytes = BlockBytes(slice.dtype);
  for (uint32_t i = 0; i < range.block_count; ++i) {
    const uint32_t block = range.first_block + i;
    const ByteSpan content = bytes.subspan(
        i * block_bytes, std::min<uint64_t>(block_bytes, bytes.size() - i * block_bytes));
    const uint64_t first_word = slice.BlockFirstWord(block);
    digests_[first_block_[index] + block] =
        copies ? CopyAndDigest(room.subspan(i * block_bytes, content.size()), content, first_word)
               : DigestBytes(content, first_word);
    if (std::exchange(here_[first_block_[index] + block], uint8_t{1}) != 0) continue;
    --missing_blocks_;
    if (progress_ != nullptr) progress_->done_bytes += content.size();
  }
  return OkStatus();
}

Result<std::vector<RankSlice>> FullAssembly::TakeLent(std::vector<LentSlice> lent) {
  DWS_CHECK(want_.device != nullptr && want_.expected.size() == want_.layout.slice_count());
  if (!wanted()) return CancelledError("given up");
  for (LentSlice& slice : lent) {
    slice.expected = want_.expected[slice.slice.value()];
    // What other sources have brought of it is overwritten.
    Drop({.slice = slice.slice, .block_count = want_.layout.slice(slice.slice).blocks});
  }
  DWS_ASSIGN_OR_RETURN(const std::vector<uint8_t> arrived, want_.device->Copy(want_.rank, lent));
  DWS_CHECK(arrived.size() == lent.size());
  std::vector<RankSlice> wrong;
  for (size_t i = 0; i < lent.size(); ++i) {
    if (arrived[i] == 0) {
      wrong.push_back(lent[i].slice);
      continue;
    }
    const RankLayout::SliceEntry& slice = want_.layout.slice(lent[i].slice);
    const size_t index = IndexOf(want_.slices, lent[i].slice);
    on_device_[index] = direct() ? 0 : 1;
    // Digests are summed by slice, so the first block may have all of it.
    for (uint32_t block = 0; block < slice.blocks; ++block) {
      digests_[first_block_[index] + block] = block == 0 ? lent[i].expected : Digest();
      here_[first_block_[index] + block] = 1;
    }
    missing_blocks_ -= slice.blocks;
    if (progress_ == nullptr) continue;
    progress_->done_bytes += slice.size_bytes();
    if (direct()) progress_->direct_bytes += slice.size_bytes();
  }
  return wrong;
}

void FullAssembly::Drop(const BlockRange& range) {
  DWS_CHECK(range.block_count == 0 || Wants(range));
  const size_t index = IndexOf(want_.slices, range.slice);
  if (on_device_[index] != 0) return;
  for (uint32_t i = 0; i < range.block_count; ++i) {
    const BlockRange block{
        .slice = range.slice, .first_block = range.first_block + i, .block_count = 1};
    if (std::exchange(here_[first_block_[index] + block.first_block], uint8_t{0}) == 0) continue;
    ++missing_blocks_;
    if (progress_ != nullptr) progress_->done_bytes -= SizeBytes(want_.layout, block);
  }
}

void FullAssembly::KeepNewer(NewerBlock newer) {
  DWS_CHECK(Wants(newer.block) && newer.bytes.size() == SizeBytes(want_.layout, newer.block));
  newer_bytes_ += newer.bytes.size() + kNewerBlockBytes;
  MutexLock lock(mutex_);
  newer_.push_back(std::move(newer));
}

std::vector<NewerBlock> FullAssembly::TakeNewer() {
  MutexLock lock(mutex_);
  newer_bytes_ = 0;
  return std::exchange(newer_, {});
}

std::vector<RankSlice> FullAssembly::DropWrong() {
  DWS_CHECK(want_.expected.size() == want_.layout.slice_count());
  std::vector<RankSlice> wrong;
  for (size_t i = 0; i < want_.slices.size(); ++i) {
    const BlockRange whole{.slice = want_.slices[i],
                           .block_count = want_.layout.slice(want_.slices[i]).blocks};
    Digest digest;
    bool complete = true;
    for (uint32_t block = 0; block < whole.block_count; ++block) {
      complete = complete && here_[first_block_[i] + block] != 0;
      digest += digests_[first_block_[i] + block];
    }
    if (!complete || digest == want_.expected[whole.slice.value()]) continue;
    wrong.push_back(whole.slice);
    Drop(whole);
  }
  return wrong;
}

FetchedFull FullAssembly::Finish() {
  DWS_CHECK(missing_blocks_ == 0);
  FetchedFull full{
      .spool = std::move(spool_), .frames = {}, .direct_bytes = direct() ? size_bytes_ : 0};
  for (size_t i = 0; i < want_.slices.size(); ++i) {
    if (on_device_[i] != 0) {
      full.on_device.push_back(want_.slices[i]);
      continue;
    }
    const RankLayout::SliceEntry& slice = want_.layout.slice(want_.slices[i]);
    const uint32_t blocks_max = BlocksIn(limits::kFrameBytesMax, slice.dtype);
    for (uint32_t block = 0; block < slice.blocks; block += blocks_max) {
      const BlockRange range{.slice = want_.slices[i],
                             .first_block = block,
                             .block_count = std::min(blocks_max, slice.blocks - block)};
      Digest digest;
      for (uint32_t b = 0; b < range.block_count; ++b) {
        digest += digests_[first_block_[i] + block + b];
      }
      full.frames.push_back({.slice = range.slice,
                             .entry = {.first_block = block,
                                       .block_count = range.block_count,
                                       .offset = 0,
                                       .size_bytes = SizeBytes(want_.layout, range),
                                       .checksum = 0},
                             .spool_offset = first_byte_[i] + FirstByte(want_.layout, range),
                             .classes = {},
                             .arrived = digest});
    }
  }
  return full;
}

}  // namespace dws
