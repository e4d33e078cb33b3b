// Checks whether the snapshot's bytes still have the digests that were published for them, slice by
// slice, between captures. Finds flipped bits in the sender's own memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/weight_version.h"
#include "sender_daemon/capture/snapshot.h"

namespace dws {

// A slice of the snapshot that differs from what was published.
struct SliceDifference {
  RankSlice slice;
  WeightVersion version;  // of the snapshot at the comparison
  Digest expected;        // published
  Digest found;           // of the bytes
  bool known = false;     // it was distrusted before
};

// Compares one slice, in reads of a few milliseconds, for which a capture waits. A slice that
// changes faster than it can be read in pieces is read at once. A slice that differs is distrusted
// from then on (snapshot.h). FAILED_PRECONDITION: the snapshot has no version.
// DEADLINE_EXCEEDED: captures left no gap within `timeout`.
Result<std::optional<SliceDifference>> CheckSlice(Snapshot& snapshot, RankSlice slice,
                                                  Duration timeout);

// Logs one line that says which tensor is damaged, and what follows from it.
void LogSnapshotDamaged(const RankLayout& layout, const SliceDifference& difference);

// Lifecycle: one per pass over the snapshot, which it shares. Threads: one at a time.
class SnapshotCheck {
 public:
  explicit SnapshotCheck(std::shared_ptr<Snapshot> snapshot);

  bool done() const { return next_ == snapshot_->layout().slice_count(); }
  uint64_t done_bytes() const { return done_bytes_; }

  // Compares the next slice, as CheckSlice. After an error the next call tries the same slice.
  Result<std::optional<SliceDifference>> Next(Duration timeout);

 private:
  const std::shared_ptr<Snapshot> snapshot_;
  uint32_t next_ = 0;
  uint64_t done_bytes_ = 0;
};

}  // namespace dws
