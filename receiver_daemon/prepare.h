// Fetch, verify and stage: everything between the choice of a target and the pause. Runs while the
// engine generates and writes nothing to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "receiver_daemon/live_state.h"
#include "receiver_daemon/sender_group.h"
#include "receiver_daemon/staging.h"

namespace dws {

// One trainer rank's part of a version, verified.
struct PreparedRank {
  std::vector<Digest> published;  // of all slices at the target
  Digest state_token;

  // The delta, when there is one: staged, or kept as frames to apply in place.
  StagedWrites writes;
  std::optional<Spool> delta_spool;
  std::vector<SpooledFrame> delta_frames;  // in place only; none when staged
  std::vector<RankSlice> delta_slices;     // that those frames write

  // Slices in full.
  std::optional<FetchedFull> full;
  std::vector<RankSlice> full_slices;

  uint64_t fetched_bytes = 0;
};

struct Prepared {
  SyncTarget target;
  std::vector<PreparedRank> ranks;

  bool repairs() const {
    for (const PreparedRank& rank : ranks) {
      if (!rank.full_slices.empty()) return true;
    }
    return false;
  }
};

// Lifecycle: as long as the worker. Threads: one at a time.
class Preparer {
 public:
  struct Options {
    std::string spool_folder;
    uint64_t staging_bytes_max =
        0;  // of staged writes, and of spooled bytes in memory; of all ranks together
  };

  Preparer(SenderGroup& senders, ThreadPool& pool, Options options)
      : senders_(senders), pool_(pool), options_(std::move(options)) {}

  // What brings memory in state `live` (known) to `target`: a delta where it is to be had and
  // proves its base, full tensors for the rest. Rejects to the senders what does not fit. Errors as
  // SenderGroup's; then nothing is left.
  Result<Prepared> Prepare(const EngineWeights& weights, const LiveState& live,
                           const SyncTarget& target);

  // As Prepare, when memory is already exactly `target`; else nullopt. Transfers digests only.
  Result<std::optional<Prepared>> PrepareAdoption(const LiveState& live, const SyncTarget& target);

 private:
  struct Job {
    const EngineWeights& weights;
    const LiveState& live;
    const SyncTarget& target;
    TrainerRank rank;

    const RankLayout& layout() const { return weights.layouts().rank(rank); }
    const LiveState::Rank& state() const { return live.ranks[rank.value()]; }
  };

  Result<PreparedRank> PrepareRank(const Job& job);
  Result<PreparedRank> FromDelta(const Job& job);
  Result<PreparedRank> FromDescription(const Job& job);
  Status AddFull(const Job& job, std::vector<RankSlice> slices, PreparedRank& prepared);
  Spool::Options SpoolOptions(const Job& job) const;
  void Reject(const Job& job, const Status& reason, std::vector<RankSlice> slices);

  SenderGroup& senders_;
  ThreadPool& pool_;
  const Options options_;
};

}  // namespace dws
