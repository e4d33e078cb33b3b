// Whether the snapshot's bytes still have the digests that are published for them: recomputed slice
// by slice, between captures. What finds a flipped bit in the sender's own memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/digest.h"
#include "common/model/layout.h"
#include "common/model/weight_version.h"
#include "sender_daemon/snapshot.h"

namespace dws {

struct SliceDifference {
  RankSlice slice;
  WeightVersion version;  // of the snapshot when it was compared
  Digest expected;        // published
  Digest found;           // of the bytes
};

// Lifecycle: one for each pass over the snapshot, which it shares. Threads: one at a time.
class SnapshotCheck {
 public:
  explicit SnapshotCheck(std::shared_ptr<Snapshot> snapshot);

  bool done() const { return next_ == snapshot_->layout().slice_count(); }
  uint64_t done_bytes() const { return done_bytes_; }

  // Compares the next slice. A capture waits for one read of a few milliseconds; only for a slice
  // that changes faster than it can be read in pieces, for all of it. FAILED_PRECONDITION: the
  // snapshot has no version yet. DEADLINE_EXCEEDED: captures left no gap within `timeout`; the same
  // slice is next again.
  Result<std::optional<SliceDifference>> Next(Duration timeout);

 private:
  // Reads `step` blocks at a time. False when the slice changed between two reads.
  Result<bool> Read(RankSlice slice, uint32_t step, Duration timeout, SliceDifference& result);

  const std::shared_ptr<Snapshot> snapshot_;
  uint32_t next_ = 0;
  uint64_t done_bytes_ = 0;
};

}  // namespace dws
