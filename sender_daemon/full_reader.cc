#include "sender_daemon/full_reader.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/delta/decoder.h"
#include "common/delta/diff.h"
#include "common/delta/encoder.h"
#include "common/delta/frame.h"
#include "common/model/limits.h"

namespace dws {
namespace {
// Copied under the gate at once: a few milliseconds that a capture may have to wait.
constexpr uint64_t kReadBytes = uint64_t{16} << 20;
}  // namespace

FullReader::FullReader(std::shared_ptr<Snapshot> snapshot, std::shared_ptr<DeltaLog> log,
                       WeightVersion version, std::vector<RankSlice> slices)
    : snapshot_(std::move(snapshot)),
      log_(std::move(log)),
      version_(version),
      slices_(std::move(slices)) {}

// The next pieces, each the blocks of one frame. Bytes are allocated here, outside the gate.
std::vector<FullReader::Piece> FullReader::TakePieces() {
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
  while (next_slice_ < slices_.size() && bytes < kReadBytes) {
    const RankLayout::SliceEntry& slice = snapshot_->layout().slice(slices_[next_slice_]);
    if (next_block_ == slice.blocks) {
      ++next_slice_;
      next_block_ = 0;
      continue;
    }
    const uint64_t element_bytes = ElementBytes(slice.dtype);
    const uint64_t block_bytes = limits::kBlockElements * element_bytes;
    // Half a frame's limit of raw blocks leaves room for the index.
    const auto blocks_max = static_cast<uint32_t>(limits::kFrameBytesMax / 2 / block_bytes);
    Piece piece{.slice = slices_[next_slice_], .first_block = next_block_};
    piece.block_count = std::min(std::max<uint32_t>(blocks_max, 1), slice.blocks - next_block_);
    const uint64_t first = uint64_t{next_block_} * limits::kBlockElements;
    const uint64_t last =
        std::min(slice.elements, first + uint64_t{piece.block_count} * limits::kBlockElements);
    piece.bytes.resize((last - first) * element_bytes);
    bytes += piece.bytes.size();
    next_block_ += piece.block_count;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

Status FullReader::ExtendChain(WeightVersion snapshot_version, Duration timeout) {
  const WeightVersion last = chain_.empty() ? version_ : chain_.back()->version;
  if (snapshot_version == last) return OkStatus();
  DWS_RETURN_IF_ERROR(
      log_->WaitFor(snapshot_version, timeout));  // captured, perhaps not sealed yet
  DWS_ASSIGN_OR_RETURN(const auto newer, log_->Chain(last, snapshot_version));
  chain_.insert(chain_.end(), newer.begin(), newer.end());
  return OkStatus();
}

// Newest version first: each one's steps are taken back from what it led to.
Status FullReader::Undo(Piece& piece) const {
  const RankLayout::SliceEntry& slice = snapshot_->layout().slice(piece.slice);
  std::vector<EncodedBlockView> views(piece.block_count);
  DecodedBlock decoded;
  for (auto version = chain_.rbegin(); version != chain_.rend(); ++version) {
    DWS_RETURN_IF_ERROR((*version)->FindBlocks(piece.slice, piece.first_block, views));
    for (uint32_t i = 0; i < piece.block_count; ++i) {
      if (views[i].mode == BlockMode::kEmpty) continue;
      const uint32_t elements = BlockElements(slice.elements, piece.first_block + i);
      DWS_RETURN_IF_ERROR(DecodeBlock(slice.dtype, elements, views[i], decoded));
      const size_t element_bytes = ElementBytes(slice.dtype);
      UndoBlock(slice.dtype, decoded,
                MutableByteSpan(piece.bytes)
                    .subspan(size_t{i} * limits::kBlockElements * element_bytes,
                             elements * element_bytes));
    }
  }
  return OkStatus();
}

Result<std::vector<FullFrame>> FullReader::Next(Duration timeout) {
  std::vector<Piece> pieces = TakePieces();
  std::vector<FullFrame> frames;
  if (pieces.empty()) return frames;

  DWS_RETURN_IF_ERROR(snapshot_->gate().BeginRead(timeout));
  const WeightVersion at =
      *snapshot_->version();  // `version_` was published, so a capture has ended
  for (Piece& piece : pieces) {
    const size_t offset = size_t{piece.first_block} * limits::kBlockElements *
                          ElementBytes(snapshot_->layout().slice(piece.slice).dtype);
    const ByteSpan from = snapshot_->SliceBytes(piece.slice).subspan(offset, piece.bytes.size());
    std::copy(from.begin(), from.end(), piece.bytes.begin());
  }
  snapshot_->gate().EndRead();

  DWS_RETURN_IF_ERROR(ExtendChain(at, timeout));
  for (Piece& piece : pieces) {
    DWS_RETURN_IF_ERROR(Undo(piece));
    const DType dtype = snapshot_->layout().slice(piece.slice).dtype;
    const size_t block_bytes = size_t{limits::kBlockElements} * ElementBytes(dtype);
    std::vector<EncodedBlock> blocks;
    for (size_t offset = 0; offset < piece.bytes.size(); offset += block_bytes) {
      const size_t size = std::min(block_bytes, piece.bytes.size() - offset);
      blocks.push_back(EncodeFullBlock(dtype, ByteSpan(piece.bytes).subspan(offset, size), false));
    }
    FullFrame frame{.slice = piece.slice, .bytes = BuildFrame(blocks)};
    frame.entry = {.first_block = piece.first_block,
                   .block_count = piece.block_count,
                   .size_bytes = frame.bytes.size(),
                   .checksum = FrameChecksum(frame.bytes)};
    frames.push_back(std::move(frame));
  }
  return frames;
}

}  // namespace dws
