// What a receiver asks its senders besides bytes, and what it tells them. sync_links.h does it over
// connections, shared_links.h through a shared directory; tests use a fake.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "common/sync_state/receiver_plan.h"
#include "common/sync_state/subscription_state.h"

namespace dws {

using Description = PublishedState;

// The outcome of a commit, for one sender.
struct CommittedReport {
  Digest state_token;  // of the version, for its rank
  double pause_seconds = 0;
  double stage_seconds = 0;
  uint64_t fetched_bytes = 0;
};

// Why a version was refused, for its sender.
struct Rejection {
  std::optional<WeightVersion> last_good;
  Status reason;
  std::vector<RankSlice> slices;
};

// Threads: safe from any.
class Senders {
 public:
  virtual ~Senders() = default;

  // The digests of a rank at the target. Blocks. UNAVAILABLE, DEADLINE_EXCEEDED: try again later.
  // ABORTED: the version is not available, or no longer. CANCELLED: the receiver stops.
  virtual Result<Description> Describe(const SyncTarget& target, TrainerRank rank) = 0;

  // Never block, never fail: a sender that is gone gets the report once it is accepted again.
  virtual void Staged(const SyncTarget& target, TrainerRank rank) = 0;
  virtual void Committed(const SyncTarget& target, TrainerRank rank,
                         const CommittedReport& report) = 0;
  virtual void Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) = 0;
};

}  // namespace dws
