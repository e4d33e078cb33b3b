// The seam between the pipeline and the senders: what it asks of them and what it tells them.
// sync_links.h is the real one, over gRPC; tests use a fake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/delta/objects/object_part.h"
#include "common/delta/squash.h"
#include "common/model/digest/digest.h"
#include "common/sync_state/receiver_plan.h"
#include "common/sync_state/subscription_state.h"
#include "receiver_daemon/spool/fetched_full.h"
#include "receiver_daemon/weights/staging.h"

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

// What is wanted as a delta, of one trainer rank. Refers to objects that its maker owns.
struct DeltaWant {
  WeightVersion base;
  const SliceSelection& slices;
  // What the engine holds as `base`, for a group that composes deltas itself; null: it composes
  // only those that need no weights. Used by the caller's thread.
  const OldWeights* old = nullptr;
  // So many bytes at the beginning of the object or part are here already: they may come as zeros.
  uint64_t skip_bytes = 0;
};

// So many bytes that were fetched early wait at most to be taken.
inline constexpr uint64_t kEarlyWaitingBytesMax = uint64_t{17} << 20;

// Takes frames of a delta that is still captured, some at a time: their spool ends with the call. An
// error ends the fetch with it.
using FrameTaker = std::function<Status(std::span<const SpooledFrame> frames, const Spool& spool)>;

// Threads: safe from any. Fetches block until done, failed or cancelled.
class SenderGroup {
 public:
  virtual ~SenderGroup() = default;

  // All errors: UNAVAILABLE, DEADLINE_EXCEEDED: try again later. ABORTED: this is not, or no
  // longer, available. CANCELLED: the receiver ends, or the spool is not wanted. DATA_LOSS: what
  // arrived is damaged. `spool`: folder and memory cap.

  // The delta object base -> target.version, or the part of it with the frames of `want.slices`; the
  // group chooses. ParseObject with the same slices takes both.
  virtual Result<Spool> FetchObject(const SyncTarget& target, TrainerRank rank,
                                    const DeltaWant& want, Spool::Options spool) = 0;
  // The same object where its bytes are in this process already; nullopt: they must be fetched.
  virtual Result<std::optional<Spool>> TakeObject(const SyncTarget& /*target*/,
                                                  TrainerRank /*rank*/, WeightVersion /*base*/,
                                                  const Spool::Options& /*spool*/) {
    return std::optional<Spool>();
  }
  virtual Result<Description> Describe(const SyncTarget& target, TrainerRank rank) = 0;
  // Full tensors. Frames belong to the wanted slices; their content is not checked (VerifyFull).
  virtual Result<FetchedFull> FetchFull(const SyncTarget& target, TrainerRank rank,
                                        const FullWant& want, Spool::Options spool) = 0;

  // Whether full tensors of an early version can be asked for (FullWant::early).
  virtual bool reads_early() const { return false; }

  // Whether FetchEarly may be called, and is worth it.
  virtual bool fetches_early(const SyncTarget& /*target*/, TrainerRank /*rank*/) const {
    return false;
  }
  // The delta base -> target.version while its sender captures it: `take` gets the frames of
  // `want.slices` by the caller's thread, those of a slice in ascending order, and nothing of them is
  // proved. Returns the object's header and manifest once the version is published. `spool`: of what
  // waits to be taken; `wanted` of it is called often. ABORTED: the version was given up or does not
  // come; errors of `take`; else as above.
  virtual Result<std::vector<std::byte>> FetchEarly(const SyncTarget& /*target*/,
                                                    TrainerRank /*rank*/, const DeltaWant& /*want*/,
                                                    const Spool::Options& /*spool*/,
                                                    const FrameTaker& /*take*/) {
    return AbortedError("deltas are fetched when they are published");
  }

  // Never block, never fail: a sender that is gone gets the report once it is accepted again.
  virtual void Staged(const SyncTarget& target, TrainerRank rank) = 0;
  virtual void Committed(const SyncTarget& target, TrainerRank rank,
                         const CommittedReport& report) = 0;
  virtual void Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) = 0;
};

}  // namespace dws
