// The retained log: the newest published versions of one stream, ascending, under a cap of bytes
// and of versions. Composes deltas over several versions, and says what can be served.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/delta_profile.h"
#include "common/model/layout.h"
#include "common/sync_state/retained_chain.h"
#include "sender_daemon/publish/retained_version.h"

namespace dws {

// How much is retained for receivers that are behind.
struct DeltaLogLimits {
  uint64_t bytes_max = 0;
  size_t versions_max = 0;
};

using ObjectPtr = std::shared_ptr<const std::vector<std::byte>>;

// Threads: safe from any.
class DeltaLog {
 public:
  DeltaLog(RankLayout layout, DeltaLogLimits limits);

  // Removes the oldest versions when a limit is passed; the newest always stays. A removed version
  // lives until its last holder releases it.
  void Append(RetainedVersionPtr version);

  RetainedVersionPtr Newest() const;  // null when empty
  RetainedVersionPtr First() const;   // appended first; null when empty or when it was removed
  RetainedVersionPtr Find(WeightVersion version) const;
  std::vector<RetainedVersionPtr> All() const;
  uint64_t retained_bytes() const;

  // Returns the versions (base, target], ascending. ABORTED: one of them is not retained, or has no
  // delta.
  Result<std::vector<RetainedVersionPtr>> Chain(WeightVersion base, WeightVersion target) const;

  // Returns whether no delta leads from `base` to `target` because a retained version between them
  // has full tensors only.
  bool HasFull(WeightVersion base, WeightVersion target) const;

  // Waits until `version` is in the log. DEADLINE_EXCEEDED: it was not appended in time.
  Status WaitFor(WeightVersion version, Duration timeout) const;

  // The object base -> target: the retained one, or a squash of several, composed once and kept for
  // other callers. With another profile than fast, the version's other object if it has one (never
  // for a squash: steps add up, ranks and values do not). The request for a profile is remembered.
  Result<ObjectPtr> Object(WeightVersion base, WeightVersion target,
                           DeltaProfile profile = DeltaProfile::kFast);

  // Returns the profile for which the next version is encoded in addition to fast: wan if a
  // receiver asked for it recently, else direct if a receiver asked for that, else fast, which adds
  // nothing.
  DeltaProfile Asked() const;
  // Returns whether all links are as fast as memory: only direct was asked for recently.
  bool AllDirect() const;
  // A link has shown that this profile fits it, as if that had been asked for.
  void Note(DeltaProfile profile);

 private:
  // When a profile was asked for last: how many versions had been appended. Numbers of versions may
  // have gaps.
  using AskedAt = std::optional<uint64_t>;
  struct Composed {
    WeightVersion base;
    WeightVersion target;
    ObjectPtr object;
  };

  const RankLayout layout_;
  // Returns whether that happened so recently that the request is still remembered.
  bool IsRecent(const AskedAt& asked) const REQUIRES(mutex_);
  AskedAt& AskedOf(DeltaProfile profile) REQUIRES(mutex_) {
    return asked_[static_cast<size_t>(profile)];
  }
  const AskedAt& AskedOf(DeltaProfile profile) const REQUIRES(mutex_) {
    return asked_[static_cast<size_t>(profile)];
  }

  mutable Mutex mutex_;
  mutable CondVar appended_;
  RetainedChain chain_ GUARDED_BY(mutex_);
  std::deque<RetainedVersionPtr> versions_ GUARDED_BY(mutex_);  // the same as in chain_
  bool complete_ GUARDED_BY(mutex_) = true;                     // none was removed
  uint64_t appends_ GUARDED_BY(mutex_) = 0;
  std::array<AskedAt, 3> asked_ GUARDED_BY(mutex_);   // by DeltaProfile
  std::deque<Composed> composed_ GUARDED_BY(mutex_);  // newest last
};

// Returns one object with the changes of `chain`, whose versions follow each other. It is exact:
// steps of consecutive versions add up. DATA_LOSS: our own memory is damaged.
Result<std::vector<std::byte>> Squash(const RankLayout& layout,
                                      const std::vector<RetainedVersionPtr>& chain);

}  // namespace dws
