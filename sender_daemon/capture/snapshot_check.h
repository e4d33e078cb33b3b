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
#include "sender_daemon/capture/snapshot.h"

namespace dws {

struct SliceDifference {
  RankSlice slice;
  WeightVersion version;  // of the snapshot when it was compared
  Digest expected;        // published
  Digest found;           // of the bytes
  bool known = false;     // it was distrusted before
};

// Compares one slice, in reads of a few milliseconds that a capture waits for; only for a slice
// that changes faster than it can be read in pieces, in one. What differs is distrusted from then
// on (snapshot.h). FAILED_PRECONDITION: the snapshot has no version yet. DEADLINE_EXCEEDED:
// captures left no gap within `timeout`.
Result<std::optional<SliceDifference>> CheckSlice(Snapshot& snapshot, RankSlice slice,
                                                  Duration timeout);

// One line of the log: which tensor, and what becomes of it.
void LogSnapshotDamaged(const RankLayout& layout, const SliceDifference& difference);

// Lifecycle: one for each pass over the snapshot, which it shares. Threads: one at a time.
class SnapshotCheck {
 public:
  explicit SnapshotCheck(std::shared_ptr<Snapshot> snapshot);

  bool done() const { return next_ == snapshot_->layout().slice_count(); }
  uint64_t done_bytes() const { return done_bytes_; }

  // Compares the next slice, as CheckSlice. On an error the same slice is next again.
  Result<std::optional<SliceDifference>> Next(Duration timeout);

 private:
  const std::shared_ptr<Snapshot> snapshot_;
  uint32_t next_ = 0;
  uint64_t done_bytes_ = 0;
};

}  // namespace dws
