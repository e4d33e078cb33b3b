// Fetch, verify and stage: everything between the choice of a target and the pause. Runs while the
// engine generates and writes nothing to it. Only an engine that has not been released may get full
// tensors at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "common/sources/source_chain.h"
#include "common/spool/transfer_progress.h"
#include "common/sync_state/live_state.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/weights/staging.h"

namespace dws {

// One trainer rank's part of a version, verified.
struct PreparedRank {
  std::vector<Digest> published;  // of all slices at the target
  Digest state_token;

  // The delta, when there is one: staged, or kept as frames to apply in place.
  std::vector<StagedParts> staged;  // none: nothing, or past the cap
  std::optional<Spool> delta_spool;
  std::vector<SpooledFrame> delta_frames;  // in place only; none when staged
  std::vector<RankSlice> delta_slices;     // that those frames write

  // Slices in full.
  std::optional<FetchedFull> full;  // none: they are written already, and not proved
  std::vector<RankSlice> full_slices;
  uint64_t direct_bytes = 0;  // of those

  uint64_t fetched_bytes = 0;
  uint64_t nnz = 0;  // of the delta
  Duration fetch = {};
  Duration stage = {};             // verify and stage
  uint64_t staging_bytes() const;  // what lies in memory for it
  uint64_t full_bytes() const {
    return direct_bytes + (full.has_value() ? full->spool.size_bytes() : 0);
  }
};

// A version that is fetched, verified and staged, ready to be committed.
struct Prepared {
  SyncTarget target;
  std::vector<PreparedRank> ranks;
  TimePoint begun = {};   // when the version was looked at
  TimePoint staged = {};  // when everything was there
  Duration upload = {};   // of the stage times of all ranks

  bool repairs() const { return full_slices() > 0; }
  size_t full_slices() const;      // how many of all ranks come in full
  uint64_t staging_bytes() const;  // what lies in memory for it
};

// What was rejected so far, and what for.
struct RejectionCounts {
  std::map<std::string, uint64_t> nacks;  // by status code, lower case
  uint64_t slices = 0;
};

// What a version may hold in memory of one of `ranks` trainer ranks, staged and spooled together.
inline uint64_t RankStagingMax(uint64_t staging_bytes_max, size_t ranks) {
  return staging_bytes_max / ranks;
}

// Lifecycle: as long as the worker. Threads: one at a time.
class Preparer {
 public:
  struct Options {
    std::string spool_folder;
    uint64_t staging_bytes_max =
        0;  // of staged writes, and of spooled bytes in memory; of all ranks together
    // Ranks that are fetched from at a time; 1: as many as the pool has threads.
    size_t transfers_at_once = 1;
  };

  Preparer(Senders& senders, SourceChain& sources, ThreadPool& pool, const Clock& clock,
           Options options)
      : senders_(senders),
        sources_(sources),
        pool_(pool),
        clock_(clock),
        options_(std::move(options)) {}

  // What brings memory in state `live` (known) to `target`, by `way`: a delta if it is available
  // and its base matches, full tensors for the rest. Rejects to the senders what does not fit.
  // Errors as Source's; then nothing is left. `wanted` is called while bytes arrive, by any
  // thread; without it everything is wanted. `direct`: where full tensors may be written that come
  // for memory of no known version; what it has touched is to be counted as unknown, whatever this
  // returns.
  Result<Prepared> Prepare(const EngineWeights& weights, const LiveState& live,
                           const SyncTarget& target, Way way = Way::kDelta,
                           const std::function<bool()>& wanted = {},
                           DirectTarget* direct = nullptr);

  // What brings memory to a version that the senders are still capturing: of those that do, full
  // tensors are read, or the delta is fetched and staged, meanwhile, and is proved when the version
  // is published; the others offer it already. `stage`: what becomes of it, as far as the senders
  // say. UNAVAILABLE, ABORTED: it came to nothing, also if no bytes arrived for kEarlyWait, so that
  // a trainer that stops in the middle does not hold up the caller. RESOURCE_EXHAUSTED: a delta is
  // too large to be staged. `await` waits for its publication, no longer than it is told.
  using EarlyStage = std::function<EarlyVersion::Stage()>;
  static constexpr Duration kEarlyWait = std::chrono::seconds(2);
  Result<Prepared> PrepareEarly(const EngineWeights& weights, const LiveState& live,
                                const SyncTarget& target, const EarlyStage& stage,
                                const std::function<void(Duration)>& await,
                                const std::function<bool()>& wanted);

  // As Prepare, when memory is already exactly `target`; else nullopt. Transfers digests only.
  Result<std::optional<Prepared>> PrepareAdoption(const LiveState& live, const SyncTarget& target);

  // The digests of all `slice_count` slices of a rank at `target`, as its sender describes them.
  // Errors as Source's.
  Result<Description> Describe(const SyncTarget& target, TrainerRank rank, size_t slice_count);

  // Sets in `live` what all ranks publish at `target`, and returns how many slices of it are not
  // that. Errors as Source's; then some ranks are set.
  Result<size_t> DescribeAll(const SyncTarget& target, LiveState& live);

  // What memory a version no longer takes is kept for the next one. Returns it to the system if
  // this finds it unused for kSpareTime. Called every few seconds, by the thread that prepares.
  static constexpr Duration kSpareTime = std::chrono::minutes(1);
  void ReturnSpare();
  void DropSpare() { spare_->Clear(); }
  uint64_t spare_bytes() const { return spare_->size_bytes(); }

  // These two from any thread. Of the last Prepare:
  const TransferProgress& progress() const { return progress_; }
  RejectionCounts rejections() const;

 private:
  struct Job {
    const EngineWeights& weights;
    const LiveState& live;
    const SyncTarget& target;
    TrainerRank rank;
    Way way;
    const std::function<bool()>& wanted;
    const EarlyStage* early = nullptr;  // PrepareEarly's
    DirectTarget* direct = nullptr;

    const RankLayout& layout() const { return weights.layouts().rank(rank); }
    const LiveState::Rank& state() const { return live.ranks[rank.value()]; }
    Piece piece() const { return {.target = target, .rank = rank}; }
  };

  // Sets what the rank publishes. Errors: as Describe.
  Status DescribeInto(PreparedRank& prepared, const SyncTarget& target, TrainerRank rank,
                      size_t slice_count);
  // The rank of `all` is ignored.
  Result<Prepared> PrepareRanks(const Job& all);
  void ForEachRank(size_t ranks, const std::function<void(size_t)>& prepare);
  Result<PreparedRank> PrepareRank(const Job& job);
  Result<PreparedRank> FromDelta(const Job& job, WeightVersion base);
  Result<PreparedRank> FromEarlyDelta(const Job& job, WeightVersion base);
  // After a call that broke: the manifest of the version, if it is published, and the frames of it
  // that `stager` lacks. At most `bytes_max` are spooled in memory.
  Result<DeltaManifest> FetchRest(const Job& job, WeightVersion base, uint64_t bytes_max,
                                  DeltaStager& stager, uint64_t& fetched);
  // What the manifest states, of a delta from `base` to the target.
  static Result<PreparedRank> FromManifest(const Job& job, WeightVersion base,
                                           const DeltaManifest& manifest);
  Result<PreparedRank> FromDescription(const Job& job);
  static std::vector<RankSlice> HeldSlices(const Job& job);
  Result<PreparedRank> FromCapture(const Job& job);
  // `early`: null if `prepared` has the digests.
  Status AddFull(const Job& job, std::vector<RankSlice> slices, PreparedRank& prepared,
                 const EarlyVersion* early = nullptr);
  uint64_t RankBytesMax(const Job& job) const;
  Spool::Options SpoolOptions(const Job& job, uint64_t memory_bytes_max);
  void RejectDelta(const Job& job, const std::vector<RejectedSlice>& rejected);
  void Reject(const Job& job, const Status& reason, std::vector<RankSlice> slices);

  Senders& senders_;
  SourceChain& sources_;
  ThreadPool& pool_;
  const Clock& clock_;
  const Options options_;
  // What one version no longer takes and the next one takes again.
  const std::shared_ptr<SparePages> spare_ = std::make_shared<SparePages>();
  TimePoint spare_since_ = {};
  TransferProgress progress_;
  mutable Mutex mutex_;
  RejectionCounts rejections_ GUARDED_BY(mutex_);
};

}  // namespace dws
