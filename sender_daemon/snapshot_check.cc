#include "sender_daemon/snapshot_check.h"

#include <algorithm>
#include <utility>

#include "common/model/limits.h"

namespace dws {
namespace {

// As much as a full transfer copies at once (full_reader.cc): a few milliseconds.
constexpr uint64_t kReadBytes = uint64_t{16} << 20;
// Then a slice is read in one go.
constexpr int kPieceTries = 3;

Digest DigestBlocks(Snapshot& snapshot, RankSlice slice, uint32_t first, uint32_t end) {
  const RankLayout::SliceEntry& entry = snapshot.layout().slice(slice);
  Digest digest;
  for (uint32_t block = first; block < end; ++block) {
    digest += DigestBytes(snapshot.BlockBytes(slice, block), entry.BlockFirstWord(block));
  }
  return digest;
}

}  // namespace

SnapshotCheck::SnapshotCheck(std::shared_ptr<Snapshot> snapshot) : snapshot_(std::move(snapshot)) {}

Result<bool> SnapshotCheck::Read(RankSlice slice, uint32_t step, Duration timeout,
                                 SliceDifference& result) {
  const uint32_t blocks = snapshot_->layout().slice(slice).blocks;
  result = {.slice = slice};
  for (uint32_t first = 0; first < blocks; first += step) {
    DWS_RETURN_IF_ERROR(snapshot_->gate().BeginRead(timeout));
    const std::optional<WeightVersion> version = snapshot_->version();
    const Digest expected = snapshot_->digests()[slice.value()];
    // A newer version that left this slice alone does no harm.
    const bool moved = first > 0 && expected != result.expected;
    if (version.has_value() && !moved) {
      result.version = *version;
      result.expected = expected;
      result.found +=
          DigestBlocks(*snapshot_, slice, first, std::min<uint32_t>(first + step, blocks));
    }
    snapshot_->gate().EndRead();
    if (!version.has_value()) {
      return FailedPreconditionError(
          "no version was published to this sender yet: there is nothing to verify");
    }
    if (moved) return false;
  }
  return true;
}

Result<std::optional<SliceDifference>> SnapshotCheck::Next(Duration timeout) {
  const RankSlice slice(next_);
  const RankLayout::SliceEntry& entry = snapshot_->layout().slice(slice);
  const uint64_t block_bytes = uint64_t{limits::kBlockElements} * ElementBytes(entry.dtype);
  const auto piece = static_cast<uint32_t>(std::max<uint64_t>(kReadBytes / block_bytes, 1));
  SliceDifference result;
  bool read = false;
  for (int tries = 1; !read; ++tries) {
    const uint32_t step = tries > kPieceTries ? entry.blocks : piece;
    DWS_ASSIGN_OR_RETURN(read, Read(slice, step, timeout, result));
  }
  ++next_;
  done_bytes_ += entry.size_bytes();
  if (result.found == result.expected) return std::optional<SliceDifference>();
  return std::optional<SliceDifference>(result);
}

}  // namespace dws
