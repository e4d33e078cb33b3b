#include "receiver_daemon/commit/prepare.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <iterator>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "receiver_daemon/weights/held_weights.h"
#include "receiver_daemon/weights/lent_copy.h"

namespace dws {
namespace {

// "data_loss"
std::string CodeName(const Status& status) {
  std::string name = absl::StatusCodeToString(status.code());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

uint64_t PreparedRank::staging_bytes() const {
  uint64_t bytes = 0;
  for (const StagedParts& parts : staged) {
    for (const auto& part : parts) bytes += part->size_bytes();
  }
  if (delta_spool.has_value()) bytes += delta_spool->memory_bytes();
  if (full.has_value()) bytes += full->spool.memory_bytes();
  return bytes;
}

uint64_t Prepared::staging_bytes() const {
  uint64_t bytes = 0;
  for (const PreparedRank& rank : ranks) bytes += rank.staging_bytes();
  return bytes;
}

uint64_t Preparer::RankBytesMax(const Job& job) const {
  return RankStagingMax(options_.staging_bytes_max, job.target.ranks.size());
}

Spool::Options Preparer::SpoolOptions(const Job& job, uint64_t memory_bytes_max) {
  return {.folder = options_.spool_folder,
          .memory_bytes_max = memory_bytes_max,
          .size_bytes_max = limits::kObjectBytesMax,
          .progress = &progress_,
          .wanted = job.order.wanted,
          .spare = spare_};
}

Result<Description> Preparer::Describe(const SyncTarget& target, TrainerRank rank,
                                       size_t slice_count) {
  DWS_ASSIGN_OR_RETURN(Description described, senders_.Describe(target, rank));
  if (described.slices.size() != slice_count ||
      StateToken(described.slices) != described.state_token) {
    return DataLossError(
        "a description of {} slices does not fit its token or the layout's {} slices",
        described.slices.size(), slice_count);
  }
  return described;
}

Status Preparer::DescribeInto(PreparedRank& prepared, const SyncTarget& target, TrainerRank rank,
                              size_t slice_count) {
  DWS_ASSIGN_OR_RETURN(Description described, Describe(target, rank, slice_count));
  prepared.published = std::move(described.slices);
  prepared.state_token = described.state_token;
  return OkStatus();
}

Result<size_t> Preparer::DescribeAll(const SyncTarget& target, LiveState& live) {
  size_t differ = 0;
  for (uint32_t r = 0; r < live.ranks.size(); ++r) {
    LiveState::Rank& rank = live.ranks[r];
    DWS_ASSIGN_OR_RETURN(Description described,
                         Describe(target, TrainerRank(r), rank.slices.size()));
    rank.published = std::move(described.slices);
    rank.state_token = described.state_token;
    differ += SlicesThatDiffer(rank.slices, rank.published).size();
  }
  return differ;
}

size_t Prepared::full_slices() const {
  size_t count = 0;
  for (const PreparedRank& rank : ranks) count += rank.full_slices.size();
  return count;
}

RejectionCounts Preparer::rejections() const {
  MutexLock lock(mutex_);
  return rejections_;
}

void Preparer::Reject(const Job& job, const Status& reason, std::vector<RankSlice> slices) {
  LogWarning("delta_rejected", {{"version", job.target.version.value()},
                                {"rank", job.rank.value()},
                                {"slices", slices.size()},
                                {"reason", Message(reason)}});
  {
    MutexLock lock(mutex_);
    ++rejections_.nacks[CodeName(reason)];
    rejections_.slices += slices.size();
  }
  sources_.Refused(job.piece());
  senders_.Rejected(job.target, job.rank,
                    {.last_good = VersionIn(job.live.at, job.target.stream),
                     .reason = reason,
                     .slices = std::move(slices)});
}

std::function<EarlyVersion::Stage()> Preparer::Watched(
    std::function<EarlyVersion::Stage()> stage) const {
  struct Seen {
    Mutex mutex;
    uint64_t bytes = 0;
    TimePoint at;
  };
  const auto seen = std::make_shared<Seen>();
  seen->at = clock_.Now();
  return [this, seen, stage = std::move(stage)] {
    const EarlyVersion::Stage now = stage();
    if (now != EarlyVersion::Stage::kCapturing) return now;
    MutexLock lock(seen->mutex);
    if (const uint64_t bytes = progress_.done_bytes.load(); seen->bytes != bytes) {
      seen->bytes = bytes;
      seen->at = clock_.Now();
    }
    return clock_.Now() - seen->at > kEarlyWait ? EarlyVersion::Stage::kGone : now;
  };
}

Result<Prepared> Preparer::Prepare(const EngineWeights& weights, const LiveState& live,
                                   const SyncTarget& target, const PrepareOrder& order) {
  DWS_CHECK(live.ranks.size() == target.ranks.size());
  const bool in_the_making = target.in_the_making();
  progress_.Reset();
  PrepareOrder watched = order;
  if (in_the_making) watched.stage = Watched(order.stage);
  Prepared prepared{.target = target, .ranks = {}};
  prepared.ranks.resize(target.ranks.size());
  const Duration uploaded = weights.UploadTime();
  // Ranks are different machines: their transfers run side by side.
  std::vector<Status> statuses(target.ranks.size());
  ForEachRank(target.ranks.size(), [&](size_t index) {
    const TimePoint begin = clock_.Now();
    Result<PreparedRank> rank = PrepareRank({.weights = weights,
                                             .live = live,
                                             .target = target,
                                             .rank = TrainerRank(static_cast<uint32_t>(index)),
                                             .order = watched});
    if (rank.ok()) {
      rank->stage = clock_.Now() - begin - rank->fetch;
      prepared.ranks[index] = *std::move(rank);
    } else {
      statuses[index] = Annotate(rank.status(), fmt::format("trainer rank {}", index));
    }
  });
  prepared.upload = weights.UploadTime() - uploaded;
  spare_->Clear();  // this version has not needed it
  spare_since_ = clock_.Now();
  for (const Status& status : statuses) DWS_RETURN_IF_ERROR(status);
  if (!in_the_making) return prepared;
  order.await(kEarlyWait);  // a sender may have sent everything before its announcement arrives
  // If the engine holds no slice of a rank, only the digests of that rank are needed.
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    PreparedRank& rank = prepared.ranks[r];
    if (!rank.published.empty()) continue;
    DWS_RETURN_IF_ERROR(DescribeInto(rank, target, TrainerRank(r), live.ranks[r].slices.size()));
  }
  return prepared;
}

void Preparer::ReturnSpare() {
  if (spare_->size_bytes() == 0) {
    spare_since_ = clock_.Now();
  } else if (clock_.Now() - spare_since_ > kSpareTime) {
    spare_->Clear();
  }
}

// Transfers wait more than they compute, so they may use more threads than the pool has.
void Preparer::ForEachRank(size_t ranks, const std::function<void(size_t)>& prepare) {
  if (options_.transfers_at_once <= 1) {
    return pool_.ParallelFor(ranks, [&](size_t index, size_t) { prepare(index); });
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t index = next++; index < ranks; index = next++) prepare(index);
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(ranks, options_.transfers_at_once); ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) thread.join();
}

Result<PreparedRank> Preparer::PrepareRank(const Job& job) {
  const std::optional<WeightVersion> base =
      job.in_the_making() ? job.piece().of().base
                          : DeltaBase(job.order.way, job.live.at, job.target.at());
  if (base.has_value()) {
    Result<PreparedRank> delta = FromDelta(job, *base);
    if (delta.ok() || job.in_the_making() || !FallsBackToFull(delta.status())) return delta;
    if (absl::IsAborted(delta.status())) {
      LogInfo("no_delta", {{"version", job.target.version.value()},
                           {"rank", job.rank.value()},
                           {"reason", Message(delta.status())}});
    } else {
      Reject(job, delta.status(), {});
    }
  }
  return FromFull(job);
}

// Stages frames as the chain brings them. They have one cap with the bytes of a whole object, which
// stay in memory meanwhile. Frames of a version in the making that wait, and those that are being
// staged, use memory in addition to the staged writes.
class Preparer::Taker final : public DeltaTaker {
 public:
  Taker(Preparer& preparer, const Job& job) : preparer_(preparer), job_(job) {
    if (job.in_the_making()) Begin(2 * spool_max());
  }
  // The memory for bytes of the delta.
  uint64_t spool_max() const {
    return job_.in_the_making() ? std::min(bytes_max_ / 4, kEarlyWaitingBytesMax) : bytes_max_;
  }
  Status Take(std::span<const SpooledFrame> frames, const Spool& spool) override {
    const TimePoint begin = preparer_.clock_.Now();
    if (!stager_.has_value()) Begin(spool.memory_bytes());
    const Status added = stager_->Add(frames, spool);
    time_ += preparer_.clock_.Now() - begin;
    if (!added.ok() || !job_.in_the_making() || !stager_->passed()) return added;
    return ResourceExhaustedError("staged writes exceed {} bytes", bytes_max_ - 2 * spool_max());
  }
  bool Has(RankSlice slice, const FrameEntry& entry) const override {
    return stager_->Added(slice, entry);
  }
  // For Take.
  Duration time() const { return time_; }
  Result<StagedDelta> Finish(const DeltaManifest& manifest) {
    return stager_->Finish(manifest, job_.state().slices);
  }

 private:
  // `used`: the memory that is not for staged writes.
  void Begin(uint64_t used) {
    stager_.emplace(job_.weights, job_.rank, bytes_max_ - std::min(used, bytes_max_),
                    preparer_.pool_, preparer_.spare_);
  }

  Preparer& preparer_;
  const Job& job_;
  const uint64_t bytes_max_ = preparer_.RankBytesMax(job_);
  std::optional<DeltaStager> stager_;
  Duration time_ = {};
};

// If a version in the making does not fit into memory, or slices of it are rejected, it is taken
// after its publication: then slices are rejected, repaired or applied in place.
Result<PreparedRank> Preparer::FromDelta(const Job& job, WeightVersion base) {
  const TimePoint begin = clock_.Now();
  const HeldWeights old(job.weights, job.rank, job.state().slices);
  Taker taker(*this, job);
  DWS_ASSIGN_OR_RETURN(
      FetchedDelta delta,
      sources_.Delta(job.piece(), {.base = base, .slices = job.weights.Held(job.rank), .old = &old},
                     SpoolOptions(job, taker.spool_max()), taker));
  const Duration fetch = clock_.Now() - begin - taker.time();
  DWS_FAILPOINT("receiver.prepare.after_fetch");
  DWS_ASSIGN_OR_RETURN(PreparedRank prepared, FromManifest(job, base, delta.manifest));
  prepared.fetched_bytes = delta.bytes;
  prepared.fetch = fetch;
  DWS_ASSIGN_OR_RETURN(StagedDelta staged, taker.Finish(delta.manifest));
  if (job.in_the_making() && !staged.rejected.empty()) {
    return UnavailableError("{} slices cannot be taken early: {}", staged.rejected.size(),
                            Message(staged.rejected.front().reason));
  }
  if (job.in_the_making() && staged.in_place) {
    return ResourceExhaustedError("the device has no memory for staged writes");
  }
  prepared.staged = std::move(staged.groups);
  std::vector<RankSlice> rejected;
  for (const RejectedSlice& slice : staged.rejected) rejected.push_back(slice.slice);
  RejectDelta(job, staged.rejected);
  if (job.live.drifted) {
    const std::vector<RankSlice> drifted = DriftedUntouched(job.state(), delta.manifest);
    rejected.insert(rejected.end(), drifted.begin(), drifted.end());
    std::sort(rejected.begin(), rejected.end());
  }
  if (staged.in_place) {
    KeepFrames(job, std::move(delta), rejected, prepared);
  } else {
    delta.object.reset();  // staged: its memory is free for full tensors
  }
  if (!rejected.empty()) DWS_RETURN_IF_ERROR(AddFull(job, std::move(rejected), prepared));
  return prepared;
}

void Preparer::KeepFrames(const Job& job, FetchedDelta delta,
                          const std::vector<RankSlice>& rejected, PreparedRank& prepared) {
  for (const SpooledFrame& frame : delta.frames) {
    if (!job.weights.Holds(job.rank, frame.slice)) continue;
    if (std::binary_search(rejected.begin(), rejected.end(), frame.slice)) continue;
    prepared.delta_frames.push_back(frame);
    if (prepared.delta_slices.empty() || prepared.delta_slices.back() != frame.slice) {
      prepared.delta_slices.push_back(frame.slice);
    }
  }
  prepared.delta_spool = std::move(delta.object);
}

Result<PreparedRank> Preparer::FromManifest(const Job& job, WeightVersion base,
                                            const DeltaManifest& manifest) {
  DWS_RETURN_IF_ERROR(CheckManifest(manifest, job.target.at(), job.rank, base));
  PreparedRank prepared;
  DWS_ASSIGN_OR_RETURN(PublishedState reached, Follow(job.state().published, manifest));
  prepared.published = std::move(reached.slices);
  prepared.state_token = reached.state_token;
  for (const SliceDelta& slice : manifest.slices) prepared.nnz += slice.nnz;
  return prepared;
}

// Leaves out slices that had drifted before: the delta is not to blame, so its sender is not told.
void Preparer::RejectDelta(const Job& job, const std::vector<RejectedSlice>& rejected) {
  std::vector<RankSlice> slices;
  const Status* reason = nullptr;
  for (const RejectedSlice& slice : rejected) {
    const uint32_t s = slice.slice.value();
    if (!job.state().slices[s].Matches(job.state().published[s])) continue;
    if (reason == nullptr) reason = &slice.reason;
    slices.push_back(slice.slice);
  }
  if (reason != nullptr) Reject(job, *reason, std::move(slices));
}

std::vector<RankSlice> Preparer::HeldSlices(const Job& job) {
  std::vector<RankSlice> slices;
  for (uint32_t s = 0; s < job.state().slices.size(); ++s) {
    const bool empty = job.layout().slice(RankSlice(s)).blocks == 0;
    if (!empty && job.weights.Holds(job.rank, RankSlice(s))) slices.emplace_back(s);
  }
  return slices;
}

Result<PreparedRank> Preparer::FromFull(const Job& job) {
  PreparedRank prepared;
  const auto describe = [&] {
    return DescribeInto(prepared, job.target, job.rank, job.state().slices.size());
  };
  const EarlyVersion early{.stage = job.order.stage, .describe = describe};
  if (!job.in_the_making()) DWS_RETURN_IF_ERROR(describe());
  // What a version in the making changes is not known yet.
  const bool all = job.in_the_making() || job.order.way == Way::kFull;
  std::vector<RankSlice> slices =
      all ? HeldSlices(job) : SlicesThatDiffer(job.state().slices, prepared.published);
  if (slices.empty()) return prepared;
  DWS_RETURN_IF_ERROR(
      AddFull(job, std::move(slices), prepared, job.in_the_making() ? &early : nullptr));
  return prepared;
}

Status Preparer::AddFull(const Job& job, std::vector<RankSlice> slices, PreparedRank& prepared,
                         const EarlyVersion* early) {
  const TimePoint begin = clock_.Now();
  const uint64_t bytes_max = RankBytesMax(job);
  Spool::Options spool_options =
      SpoolOptions(job, bytes_max - std::min(bytes_max, prepared.staging_bytes()));
  for (const RankSlice slice : slices) {
    spool_options.size_bytes_expected += job.layout().slice(slice).size_bytes();
  }
  const uint64_t bytes = spool_options.size_bytes_expected;
  const std::function<void(const Status&)> refuse = [&](const Status& reason) {
    Reject(job, reason, absl::IsDataLoss(reason) ? slices : std::vector<RankSlice>());
  };
  // If memory is at a version, even one that is not committed yet, a delta may apply to it, so it
  // must not be overwritten here.
  DirectWrite* const direct = job.live.at.has_value() ? nullptr : job.order.direct;
  LentCopy staging(job.weights, spool_options.memory_bytes_max);
  // Without room for all of it there, nothing is gained by waiting for the capture to end.
  DeviceTarget* device = staging.HasRoom(job.rank, slices) ? &staging : nullptr;
  if (direct != nullptr) device = direct;
  DWS_ASSIGN_OR_RETURN(FetchedFull full, sources_.Full(job.piece(),
                                                       {.layout = job.layout(),
                                                        .slices = slices,
                                                        .expected = prepared.published,
                                                        .early = early,
                                                        .refuse = &refuse,
                                                        .direct = direct,
                                                        .device = device,
                                                        .rank = job.rank},
                                                       std::move(spool_options)));
  prepared.fetch += clock_.Now() - begin;
  DWS_FAILPOINT("receiver.prepare.after_fetch_full");
  prepared.fetched_bytes += bytes;
  std::vector<RankSlice> spooled;
  std::ranges::set_difference(slices, full.on_device, std::back_inserter(spooled));
  const Status verified =
      VerifyFull(job.layout(), spooled, full.frames, full.spool, prepared.published, pool_);
  if (!verified.ok()) {
    Reject(job, verified, slices);
    // Not DATA_LOSS: full tensors were the last resort, so there is nothing to fall back to but
    // time.
    return UnavailableError("full tensors do not verify: {}", Message(verified));
  }
  for (StagedParts& parts : staging.TakeStaged()) prepared.staged.push_back(std::move(parts));
  if (direct == nullptr && !spooled.empty()) {
    prepared.full = std::move(full);
  } else {
    prepared.direct_bytes = bytes;
  }
  prepared.full_slices = std::move(slices);
  return OkStatus();
}

Result<std::optional<Prepared>> Preparer::PrepareAdoption(const LiveState& live,
                                                          const SyncTarget& target) {
  DWS_CHECK(live.ranks.size() == target.ranks.size());
  Prepared prepared{.target = target, .ranks = {}};
  for (uint32_t r = 0; r < target.ranks.size(); ++r) {
    const std::vector<SliceState>& slices = live.ranks[r].slices;
    PreparedRank& rank = prepared.ranks.emplace_back();
    DWS_RETURN_IF_ERROR(DescribeInto(rank, target, TrainerRank(r), slices.size()));
    if (!SlicesThatDiffer(slices, rank.published).empty()) return std::optional<Prepared>();
  }
  return std::optional<Prepared>(std::move(prepared));
}

}  // namespace dws
