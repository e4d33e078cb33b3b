#include "sender_daemon/capture/snapshot_check.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Takes a few milliseconds.
constexpr uint64_t kReadBytes = uint64_t{16} << 20;
// After so many attempts in pieces a slice is read at once.
constexpr int kPieceTries = 3;

// Reads `step` blocks at a time. False when the slice changed between two reads.
Result<bool> Read(Snapshot& snapshot, RankSlice slice, uint32_t step, Duration timeout,
                  SliceDifference& result) {
  const uint32_t blocks = snapshot.layout().slice(slice).blocks;
  result = {.slice = slice};
  for (uint32_t first = 0; first < blocks; first += step) {
    DWS_RETURN_IF_ERROR(snapshot.gate().BeginRead(timeout));
    const std::optional<WeightVersion> version = snapshot.version();
    const Digest expected = snapshot.digests()[slice.value()];
    // A newer version that did not change this slice does not matter.
    const bool moved = first > 0 && expected != result.expected;
    if (version.has_value() && !moved) {
      result.version = *version;
      result.expected = expected;
      result.found += snapshot.DigestBlocks(slice, first, std::min<uint32_t>(first + step, blocks));
    }
    snapshot.gate().EndRead();
    if (!version.has_value()) {
      return FailedPreconditionError(
          "the snapshot has no version (none was published yet, or a full version was given up): "
          "there is nothing to verify until the next version is published");
    }
    if (moved) return false;
  }
  return true;
}

// Returns false if a capture has changed the slice meanwhile: then the comparison no longer holds.
bool Distrust(Snapshot& snapshot, SliceDifference& difference) {
  snapshot.gate().BeginCapture();
  const bool same = snapshot.digests()[difference.slice.value()] == difference.expected;
  difference.known = snapshot.distrusts(difference.slice);
  if (same) snapshot.SetDistrust(difference.slice, true);
  snapshot.gate().EndCapture();
  return same;
}

}  // namespace

Result<std::optional<SliceDifference>> CheckSlice(Snapshot& snapshot, RankSlice slice,
                                                  Duration timeout) {
  const RankLayout::SliceEntry& entry = snapshot.layout().slice(slice);
  const uint64_t block_bytes = uint64_t{limits::kBlockElements} * ElementBytes(entry.dtype);
  const auto piece = static_cast<uint32_t>(std::max<uint64_t>(kReadBytes / block_bytes, 1));
  SliceDifference result;
  for (int tries = 1;; ++tries) {
    const uint32_t step = tries > kPieceTries ? entry.blocks : piece;
    DWS_ASSIGN_OR_RETURN(const bool read, Read(snapshot, slice, step, timeout, result));
    if (!read) continue;
    if (result.found == result.expected) return std::optional<SliceDifference>();
    if (Distrust(snapshot, result)) return std::optional<SliceDifference>(result);
  }
}

void LogSnapshotDamaged(const RankLayout& layout, const SliceDifference& difference) {
  LogError("snapshot_damaged", {{"tensor", layout.tensor(difference.slice).name},
                                {"rank_slice", difference.slice.value()},
                                {"version", difference.version.value()},
                                {"expected", ToString(difference.expected)},
                                {"found", ToString(difference.found)},
                                {"reason",
                                 "the next version that brings this tensor repairs it, and "
                                 "receivers take it in full then"}});
}

SnapshotCheck::SnapshotCheck(std::shared_ptr<Snapshot> snapshot) : snapshot_(std::move(snapshot)) {}

Result<std::optional<SliceDifference>> SnapshotCheck::Next(Duration timeout) {
  DWS_CHECK(!done());
  const RankSlice slice(next_);
  DWS_ASSIGN_OR_RETURN(auto difference, CheckSlice(*snapshot_, slice, timeout));
  ++next_;
  done_bytes_ += snapshot_->layout().slice(slice).size_bytes();
  DWS_CHECK(done_bytes_ <= snapshot_->layout().size_bytes());
  return difference;
}

}  // namespace dws
