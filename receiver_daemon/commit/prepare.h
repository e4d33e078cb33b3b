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
#include "receiver_daemon/weights/direct_write.h"
#include "receiver_daemon/weights/staging.h"

namespace dws {

// One trainer rank's part of a version, verified.
struct PreparedRank {
  std::vector<Digest> published;  // of all slices at the target
  Digest state_token;

  // The delta, when there is one: staged, or kept as frames to apply in place.
  // Empty if nothing is to be written, or past the memory limit: then `delta_frames` has it.
  std::vector<StagedParts> staged;
  std::optional<Spool> delta_spool;
  std::vector<SpooledFrame> delta_frames;  // in place only; none when staged
  std::vector<RankSlice> delta_slices;     // that those frames write
  // Slices in full. None if they were written to the engine's memory, which the commit reads back,
  // or are all in `staged`.
  std::optional<FetchedFull> full;
  std::vector<RankSlice> full_slices;
  uint64_t direct_bytes = 0;  // of those, unless `full` has some

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

// How many bytes a version may stage and spool in memory for one of `ranks` trainer ranks.
inline uint64_t RankStagingMax(uint64_t staging_bytes_max, size_t ranks) {
  return staging_bytes_max / ranks;
}

// How a version is to be prepared.
struct PrepareOrder {
  Way way = Way::kDelta;
  // Any thread may call it while bytes arrive; empty: everything is wanted.
  std::function<bool()> wanted = {};
  // If memory has no known version, full tensors may be written here as they arrive. The caller
  // must count the slices that it has touched as unknown, whatever Prepare returns. May be null.
  DirectWrite* direct = nullptr;
  // For a version in the making. Returns whether the senders still capture it, as they have told.
  // Any thread may call it.
  std::function<EarlyVersion::Stage()> stage = {};
  // For a version in the making. Blocks until it is published, at most for the given time.
  std::function<void(Duration)> await = {};
};

// Lifecycle: as long as the worker. Threads: one at a time.
class Preparer {
 public:
  struct Options {
    std::string spool_folder;
    // Limits staged writes and spooled bytes in memory, of all ranks together.
    uint64_t staging_bytes_max = 0;
    // How many ranks are fetched from at a time; 1: as many as the pool has threads.
    size_t transfers_at_once = 1;
  };

  Preparer(Senders& senders, SourceChain& sources, ThreadPool& pool, const Clock& clock,
           Options options)
      : senders_(senders),
        sources_(sources),
        pool_(pool),
        clock_(clock),
        options_(std::move(options)) {}

  // Prepares what brings memory in state `live`, which must be known, to `target`, by the order's
  // way: a delta if one is available and its base matches, full tensors for the rest. Tells the
  // senders about data that does not fit. Errors as Source's; after an error nothing is kept.
  //
  // Ranks whose senders still capture the version are read meanwhile, and proved when it is
  // published; then the order needs `stage` and `await`. UNAVAILABLE, ABORTED: it came to nothing,
  // for example because no bytes have come for kEarlyWait: a trainer that stops in the middle does
  // not hold up the caller. RESOURCE_EXHAUSTED: the delta of such a rank is too large to be staged.
  Result<Prepared> Prepare(const EngineWeights& weights, const LiveState& live,
                           const SyncTarget& target, const PrepareOrder& order = {});
  static constexpr Duration kEarlyWait = std::chrono::seconds(2);

  // Returns nullopt unless memory is already exactly `target`. Transfers digests only.
  Result<std::optional<Prepared>> PrepareAdoption(const LiveState& live, const SyncTarget& target);

  // The digests of all `slice_count` slices of a rank at `target`, as its sender describes them.
  // Errors as Source's.
  Result<Description> Describe(const SyncTarget& target, TrainerRank rank, size_t slice_count);

  // Sets in `live` the digests that all ranks publish at `target`, and returns how many slices of
  // `live` differ from them. Errors as Source's; after an error some ranks are set.
  Result<size_t> DescribeAll(const SyncTarget& target, LiveState& live);

  // Memory that one version no longer uses is kept for the next one. Returns it to the system if it
  // has been unused for kSpareTime. The thread that prepares calls this every few seconds.
  static constexpr Duration kSpareTime = std::chrono::minutes(1);
  void ReturnSpare();
  void DropSpare() { spare_->Clear(); }
  uint64_t spare_bytes() const { return spare_->size_bytes(); }

  // Any thread may call these two. The progress is that of the last Prepare.
  const TransferProgress& progress() const { return progress_; }
  RejectionCounts rejections() const;

 private:
  class Taker;
  struct Job {
    const EngineWeights& weights;
    const LiveState& live;
    const SyncTarget& target;
    TrainerRank rank;
    const PrepareOrder& order;

    const RankLayout& layout() const { return weights.layouts().rank(rank); }
    const LiveState::Rank& state() const { return live.ranks[rank.value()]; }
    Piece piece() const { return {.target = target, .rank = rank}; }
    bool in_the_making() const { return piece().of().in_the_making(); }
  };

  // `stage`, until no bytes have come for kEarlyWait.
  std::function<EarlyVersion::Stage()> Watched(std::function<EarlyVersion::Stage()> stage) const;
  // Sets what the rank publishes. Errors: as Describe.
  Status DescribeInto(PreparedRank& prepared, const SyncTarget& target, TrainerRank rank,
                      size_t slice_count);
  void ForEachRank(size_t ranks, const std::function<void(size_t)>& prepare);
  Result<PreparedRank> PrepareRank(const Job& job);
  Result<PreparedRank> FromDelta(const Job& job, WeightVersion base);
  // What the manifest of a delta from `base` to the target states.
  static Result<PreparedRank> FromManifest(const Job& job, WeightVersion base,
                                           const DeltaManifest& manifest);
  // Keeps the frames of held slices in `prepared`, but those of rejected ones.
  static void KeepFrames(const Job& job, FetchedDelta delta, const std::vector<RankSlice>& rejected,
                         PreparedRank& prepared);
  Result<PreparedRank> FromFull(const Job& job);
  static std::vector<RankSlice> HeldSlices(const Job& job);
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
  // Memory that one version no longer uses, kept for the next one.
  const std::shared_ptr<SparePages> spare_ = std::make_shared<SparePages>();
  TimePoint spare_since_ = {};
  TransferProgress progress_;
  mutable Mutex mutex_;
  RejectionCounts rejections_ GUARDED_BY(mutex_);
};

}  // namespace dws
