#include "sender_daemon/publish/full_reader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/delta/objects/frame.h"
#include "common/model/limits.h"
#include "sender_daemon/publish/undo_blocks.h"

namespace dws {
namespace {
// Number of bytes that are copied at once under the gate. A capture may wait for this copy, for
// about a millisecond. They are few enough to be still in the cache when they are checksummed and
// sent.
constexpr uint64_t kReadBytes = uint64_t{4} << 20;
constexpr uint64_t kFrameAlignment = 64;
// The last frame may reach beyond kReadBytes.
constexpr uint64_t kMemoryBytes = kReadBytes + limits::kFrameBytesMax + kFrameSlackBytes;

// The index rows of `count` dense-raw blocks from `first_block` on.
std::vector<FrameRow> DenseRawRows(const RankLayout::SliceEntry& slice, uint32_t first_block,
                                   uint32_t count) {
  std::vector<FrameRow> rows(count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto elements = static_cast<uint32_t>(BlockElements(slice.elements, first_block + i));
    rows[i][kFrameSize] = elements * ElementBytes(slice.dtype);
    rows[i][kFrameNnz] = elements;
    rows[i][kFrameMode] = static_cast<uint32_t>(BlockMode::kDenseRaw);
  }
  return rows;
}

}  // namespace

FullReader::FullReader(std::shared_ptr<Snapshot> snapshot, std::shared_ptr<DeltaLog> log,
                       WeightVersion version, std::vector<BlockRange> ranges)
    : snapshot_(std::move(snapshot)),
      log_(std::move(log)),
      version_(version),
      ranges_(std::move(ranges)),
      read_(snapshot_->reads(), version_, ranges_),
      memory_(AllocateOwnPages(kMemoryBytes)) {
  DWS_CHECK(std::all_of(ranges_.begin(), ranges_.end(), [this](const BlockRange& range) {
    return IsInside(snapshot_->layout(), range);
  }));
}

void FullReader::Only(std::vector<BlockRange> ranges) {
  ranges_ = std::move(ranges);
  narrowed_ = true;
  next_range_ = 0;
  next_offset_ = 0;
}

void FullReader::Hold() {
  const RetainedVersionPtr newest = log_->Newest();
  // What cannot be held is missed when it is needed.
  const WeightVersion last = chain_.empty() ? version_ : chain_.back()->version;
  if (newest != nullptr && newest->version > last) {
    (void)ExtendChain(newest->version, Duration::zero());
  }
}

// The next pieces, one frame each. Writes the frame indexes here, outside the gate.
std::vector<FullReader::Piece> FullReader::TakePieces() {
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
  while (next_range_ < ranges_.size() && bytes < kReadBytes) {
    const BlockRange& range = ranges_[next_range_];
    if (next_offset_ == range.block_count) {
      ++next_range_;
      next_offset_ = 0;
      continue;
    }
    const RankLayout::SliceEntry& slice = snapshot_->layout().slice(range.slice);
    // Half a frame's limit of raw blocks leaves room for the index.
    const uint32_t blocks_max = BlocksIn(limits::kFrameBytesMax / 2, slice.dtype);
    Piece piece{.slice = range.slice, .first_block = range.first_block + next_offset_};
    piece.block_count = std::min(blocks_max, range.block_count - next_offset_);
    const std::vector<FrameRow> rows = DenseRawRows(slice, piece.first_block, piece.block_count);
    std::byte* const frame = memory_.get() + bytes;
    piece.frame = ByteSpan(frame, FrameSize(rows));
    DWS_CHECK(bytes + piece.frame.size() + kFrameSlackBytes <= kMemoryBytes);
    piece.payloads = WriteFrameIndex(rows, frame);
    DWS_CHECK(piece.payloads.data() + piece.payloads.size() == frame + piece.frame.size());
    bytes += CeilDiv(piece.frame.size(), kFrameAlignment) * kFrameAlignment;
    next_offset_ += piece.block_count;
    pieces.push_back(piece);
  }
  return pieces;
}

Status FullReader::ExtendChain(WeightVersion snapshot_version, Duration timeout) {
  const WeightVersion last = chain_.empty() ? version_ : chain_.back()->version;
  if (snapshot_version == last) return OkStatus();
  DWS_CHECK(snapshot_version > last);  // versions of a snapshot only rise
  DWS_RETURN_IF_ERROR(
      log_->WaitFor(snapshot_version, timeout));  // captured, perhaps not sealed yet
  const auto newer = log_->Chain(last, snapshot_version);
  if (!newer.ok()) {
    return AbortedError(
        "version {} can no longer be read, the sender is at version {}: take a newer one",
        version_.value(), snapshot_version.value());
  }
  chain_.insert(chain_.end(), newer->begin(), newer->end());
  DWS_CHECK(chain_.back()->version == snapshot_version);
  return OkStatus();
}

// Undoes the steps of the newest version first.
Status FullReader::Undo(const Piece& piece) const {
  UndoScratch scratch;
  for (auto version = chain_.rbegin(); version != chain_.rend(); ++version) {
    DWS_RETURN_IF_ERROR(UndoBlocks(**version, snapshot_->layout(), piece.slice, piece.first_block,
                                   piece.block_count, piece.payloads, scratch));
  }
  return OkStatus();
}

Result<std::vector<FullFrame>> FullReader::NextWhile(const std::function<bool()>& wanted) {
  const auto late = std::chrono::steady_clock::now() + limits::kSnapshotReadDeadline;
  for (bool told = false; true;) {
    if (!wanted()) return CancelledError("the sender is shutting down");
    auto frames = Next(limits::kTick);
    if (!absl::IsDeadlineExceeded(frames.status())) return frames;
    if (told || std::chrono::steady_clock::now() < late) continue;
    told = true;
    LogWarning("full_read_waits",
               {{"version", version_.value()}, {"reason", Message(frames.status())}});
  }
}

Result<std::vector<FullFrame>> FullReader::Next(Duration timeout) {
  const size_t range = next_range_;
  const uint32_t offset = next_offset_;
  if (!narrowed_) read_.Passed(range, offset);
  auto frames = ReadPieces(TakePieces(), timeout);
  if (absl::IsAborted(frames.status())) snapshot_->reads().Refused();
  if (!frames.ok()) {
    next_range_ = range;
    next_offset_ = offset;
  }
  return frames;
}

Result<WeightVersion> FullReader::Copy(const std::vector<Piece>& pieces, Duration timeout) const {
  std::shared_ptr<const KeptBlocks> kept = read_.kept();
  const bool reads_snapshot = kept == nullptr || !kept->closed();
  if (reads_snapshot) {  // or awaits the capture that fills `kept`
    DWS_RETURN_IF_ERROR(snapshot_->gate().BeginRead(timeout));
    kept = read_.kept();
  }
  const std::optional<WeightVersion> at = kept == nullptr ? snapshot_->version() : kept->version();
  for (const Piece& piece : pieces) {
    if (!at.has_value()) break;
    const RankLayout::SliceEntry& entry = snapshot_->layout().slice(piece.slice);
    const size_t block_bytes = size_t{limits::kBlockElements} * ElementBytes(entry.dtype);
    const size_t offset = size_t{piece.first_block} * block_bytes;
    if (kept == nullptr) {
      const ByteSpan slice = snapshot_->SliceBytes(piece.slice);
      DWS_CHECK(offset <= slice.size() && piece.payloads.size() <= slice.size() - offset);
      std::memcpy(piece.payloads.data(), slice.data() + offset, piece.payloads.size());
      continue;
    }
    for (uint32_t i = 0; i < piece.block_count; ++i) {
      const MutableByteSpan to = piece.payloads.subspan(
          i * block_bytes, std::min(block_bytes, piece.payloads.size() - i * block_bytes));
      const ByteSpan from = kept->Block(entry.first_block + piece.first_block + i, to.size());
      std::memcpy(to.data(), from.data(), to.size());
    }
  }
  if (reads_snapshot) snapshot_->gate().EndRead();
  if (at.has_value()) return *at;
  return AbortedError(
      "version {} can no longer be read: a full version that overwrote it was given up; take the "
      "next one",
      version_.value());
}

Result<std::vector<FullFrame>> FullReader::ReadPieces(const std::vector<Piece>& pieces,
                                                      Duration timeout) {
  std::vector<FullFrame> frames;
  if (pieces.empty()) return frames;
  DWS_ASSIGN_OR_RETURN(const WeightVersion at, Copy(pieces, timeout));
  if (at < version_) {  // the capture that an early reader followed was given up
    return AbortedError("version {} was given up, the snapshot is at {}", version_.value(),
                        at.value());
  }
  DWS_RETURN_IF_ERROR(ExtendChain(at, timeout));
  for (const Piece& piece : pieces) {
    DWS_RETURN_IF_ERROR(Undo(piece));
    frames.push_back({.slice = piece.slice,
                      .entry = {.first_block = piece.first_block,
                                .block_count = piece.block_count,
                                .size_bytes = piece.frame.size(),
                                .checksum = FrameChecksum(piece.frame)},
                      .bytes = piece.frame,
                      .content = piece.payloads});
  }
  return frames;
}

}  // namespace dws
