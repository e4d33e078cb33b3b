#include "receiver_daemon/commit/prepare.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/delta/objects/object.h"
#include "common/model/limits.h"
#include "common/spool/fetched_object.h"
#include "receiver_daemon/weights/held_weights.h"

namespace dws {
namespace {

// "data_loss"
std::string CodeName(const Status& status) {
  std::string name = absl::StatusCodeToString(status.code());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

// What a rank publishes at a target, and which slices of live memory differ from it.
struct Comparison {
  PreparedRank prepared;  // nothing to write yet
  std::vector<RankSlice> differ;
};

Result<Comparison> Compare(Preparer& preparer, const SyncTarget& target, TrainerRank rank,
                           const std::vector<SliceState>& live) {
  DWS_ASSIGN_OR_RETURN(Description described, preparer.Describe(target, rank, live.size()));
  Comparison compared{.prepared = {}, .differ = SlicesThatDiffer(live, described.slices)};
  compared.prepared.published = std::move(described.slices);
  compared.prepared.state_token = described.state_token;
  return compared;
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
          .wanted = job.wanted,
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

Result<Prepared> Preparer::Prepare(const EngineWeights& weights, const LiveState& live,
                                   const SyncTarget& target, Way way,
                                   const std::function<bool()>& wanted, DirectTarget* direct) {
  return PrepareRanks({.weights = weights,
                       .live = live,
                       .target = target,
                       .rank = TrainerRank(0),
                       .way = way,
                       .wanted = wanted,
                       .direct = direct});
}

Result<Prepared> Preparer::PrepareEarly(const EngineWeights& weights, const LiveState& live,
                                        const SyncTarget& target, const EarlyStage& stage,
                                        const std::function<void(Duration)>& await,
                                        const std::function<bool()>& wanted) {
  struct Seen {
    Mutex mutex;
    uint64_t bytes = 0;
    TimePoint at;
  };
  Seen seen;
  seen.at = clock_.Now();
  const EarlyStage watched = [&] {
    const EarlyVersion::Stage now = stage();
    if (now != EarlyVersion::Stage::kCapturing) return now;
    MutexLock lock(seen.mutex);
    if (const uint64_t bytes = progress_.done_bytes.load(); seen.bytes != bytes) {
      seen.bytes = bytes;
      seen.at = clock_.Now();
    }
    return clock_.Now() - seen.at > kEarlyWait ? EarlyVersion::Stage::kGone : now;
  };
  DWS_ASSIGN_OR_RETURN(Prepared prepared, PrepareRanks({.weights = weights,
                                                        .live = live,
                                                        .target = target,
                                                        .rank = TrainerRank(0),
                                                        .way = Way::kDelta,
                                                        .wanted = wanted,
                                                        .early = &watched}));
  await(kEarlyWait);  // a sender may have sent everything before its announcement arrives
  // If the engine holds no slice of a rank, only the digests of that rank are needed.
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    PreparedRank& rank = prepared.ranks[r];
    const SyncTarget::Rank& of = target.ranks[r];
    if (!of.in_the_making() || of.base.has_value() || rank.full.has_value()) continue;
    DWS_RETURN_IF_ERROR(DescribeInto(rank, target, TrainerRank(r), live.ranks[r].slices.size()));
  }
  return prepared;
}

Result<Prepared> Preparer::PrepareRanks(const Job& all) {
  const SyncTarget& target = all.target;
  DWS_CHECK(all.live.ranks.size() == target.ranks.size());
  progress_.Reset();
  Prepared prepared{.target = target, .ranks = {}};
  prepared.ranks.resize(target.ranks.size());
  const Duration uploaded = all.weights.UploadTime();
  // Ranks are different machines: their transfers run side by side.
  std::vector<Status> statuses(target.ranks.size());
  ForEachRank(target.ranks.size(), [&](size_t index) {
    Job job = all;
    job.rank = TrainerRank(static_cast<uint32_t>(index));
    const TimePoint begin = clock_.Now();
    const bool early = job.early != nullptr && target.ranks[index].in_the_making();
    const auto& base = target.ranks[index].base;
    Result<PreparedRank> rank = !early             ? PrepareRank(job)
                                : base.has_value() ? FromEarlyDelta(job, *base)
                                                   : FromCapture(job);
    if (rank.ok()) {
      rank->stage = clock_.Now() - begin - rank->fetch;
      prepared.ranks[index] = *std::move(rank);
    } else {
      statuses[index] = Annotate(rank.status(), fmt::format("trainer rank {}", index));
    }
  });
  prepared.upload = all.weights.UploadTime() - uploaded;
  spare_->Clear();  // this version has not needed it
  spare_since_ = clock_.Now();
  for (const Status& status : statuses) DWS_RETURN_IF_ERROR(status);
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
  if (const auto base = DeltaBase(job.way, job.live.at, job.target.at()); base.has_value()) {
    Result<PreparedRank> delta = FromDelta(job, *base);
    if (delta.ok() || !FallsBackToFull(delta.status())) return delta;
    if (absl::IsAborted(delta.status())) {
      LogInfo("no_delta", {{"version", job.target.version.value()},
                           {"rank", job.rank.value()},
                           {"reason", Message(delta.status())}});
    } else {
      Reject(job, delta.status(), {});
    }
  }
  return FromDescription(job);
}

Result<PreparedRank> Preparer::FromDelta(const Job& job, WeightVersion base) {
  const TimePoint begin = clock_.Now();
  const SliceSelection& slices = job.weights.Held(job.rank);
  const HeldWeights old(job.weights, job.rank, job.state().slices);
  DWS_ASSIGN_OR_RETURN(Spool spool,
                       sources_.Delta(job.piece(), {.base = base, .slices = slices, .old = &old},
                                      SpoolOptions(job, RankBytesMax(job))));
  const Duration fetch = clock_.Now() - begin;
  DWS_FAILPOINT("receiver.prepare.after_fetch");
  DWS_ASSIGN_OR_RETURN(FetchedObject object, ParseObject(spool, job.layout(), slices));
  DWS_ASSIGN_OR_RETURN(PreparedRank prepared, FromManifest(job, base, object.manifest));
  prepared.fetched_bytes = spool.size_bytes();
  prepared.fetch = fetch;

  // Spooled bytes stay in memory while the writes are staged: one cap for both.
  const uint64_t bytes_max = RankBytesMax(job);
  const uint64_t spooled = std::min(spool.memory_bytes(), bytes_max);
  DWS_ASSIGN_OR_RETURN(StagedDelta staged,
                       StageDelta(job.weights, job.rank, object.manifest, object.frames, spool,
                                  job.state().slices, bytes_max - spooled, pool_, spare_));
  prepared.staged = std::move(staged.groups);
  std::vector<RankSlice> rejected;
  for (const RejectedSlice& slice : staged.rejected) rejected.push_back(slice.slice);
  RejectDelta(job, staged.rejected);
  if (staged.in_place) {
    for (const SpooledFrame& frame : object.frames) {
      if (!job.weights.Holds(job.rank, frame.slice)) continue;
      if (std::binary_search(rejected.begin(), rejected.end(), frame.slice)) continue;
      prepared.delta_frames.push_back(frame);
      if (prepared.delta_slices.empty() || prepared.delta_slices.back() != frame.slice) {
        prepared.delta_slices.push_back(frame.slice);
      }
    }
    prepared.delta_spool = std::move(spool);
  } else {
    spool = Spool({});  // staged: its memory is free for full tensors
  }
  if (job.live.drifted) {
    for (const RankSlice slice : DriftedUntouched(job.state(), object.manifest)) {
      rejected.push_back(slice);
    }
    std::sort(rejected.begin(), rejected.end());
  }
  if (!rejected.empty()) DWS_RETURN_IF_ERROR(AddFull(job, std::move(rejected), prepared));
  return prepared;
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

// Stages frames as they arrive; the sender says when the capture does not go on. If a frame is
// damaged or does not fit into memory, the version is taken after its publication: then slices are
// rejected, repaired or applied in place.
Result<PreparedRank> Preparer::FromEarlyDelta(const Job& job, WeightVersion base) {
  const SliceSelection& slices = job.weights.Held(job.rank);
  // Frames that wait, and frames that are being staged, use memory in addition to the staged
  // writes.
  const uint64_t waiting_max = std::min(RankBytesMax(job) / 4, kEarlyWaitingBytesMax);
  const uint64_t staging_max = RankBytesMax(job) - 2 * waiting_max;
  const Spool::Options options = SpoolOptions(job, waiting_max);
  DeltaStager stager(job.weights, job.rank, staging_max, pool_, spare_);
  const TimePoint begin = clock_.Now();
  uint64_t fetched = 0;
  Duration staging = {};
  const auto take = [&](std::span<const SpooledFrame> frames, const Spool& spool) {
    const TimePoint taken = clock_.Now();
    fetched += spool.size_bytes();
    const Status added = stager.Add(frames, spool);
    staging += clock_.Now() - taken;
    if (!added.ok() || !stager.passed()) return added;
    return ResourceExhaustedError("staged writes exceed {} bytes", staging_max);
  };
  const Result<std::vector<std::byte>> head =
      sources_.DeltaCapture(job.piece(), {.base = base, .slices = slices}, options, take);
  DeltaManifest manifest;
  if (head.ok()) {
    fetched += head->size();
    DWS_ASSIGN_OR_RETURN(manifest, ParseObjectManifest(*head, job.layout()));
  } else if (absl::IsUnavailable(head.status())) {  // the link was lost, not what it had brought
    DWS_ASSIGN_OR_RETURN(manifest, FetchRest(job, base, waiting_max, stager, fetched));
  } else {
    return head.status();
  }
  const Duration fetch = clock_.Now() - begin - staging;
  DWS_ASSIGN_OR_RETURN(PreparedRank prepared, FromManifest(job, base, manifest));
  prepared.fetched_bytes = fetched;
  prepared.fetch = fetch;
  DWS_ASSIGN_OR_RETURN(StagedDelta staged, stager.Finish(manifest, job.state().slices));
  if (!staged.rejected.empty()) {
    return UnavailableError("{} slices cannot be taken early: {}", staged.rejected.size(),
                            Message(staged.rejected.front().reason));
  }
  if (staged.in_place) return ResourceExhaustedError("the device has no memory for staged writes");
  prepared.staged = std::move(staged.groups);
  return prepared;
}

Result<DeltaManifest> Preparer::FetchRest(const Job& job, WeightVersion base, uint64_t bytes_max,
                                          DeltaStager& stager, uint64_t& fetched) {
  const auto part = [&](const SliceSelection& slices, uint64_t skip_bytes) -> Result<Spool> {
    const DeltaWant want{.base = base, .slices = slices, .old = nullptr, .skip_bytes = skip_bytes};
    DWS_ASSIGN_OR_RETURN(Spool spool,
                         sources_.Delta(job.piece(), want, SpoolOptions(job, bytes_max)));
    fetched += spool.size_bytes() - skip_bytes;
    return spool;
  };
  const SliceSelection none = std::vector<RankSlice>();
  DWS_ASSIGN_OR_RETURN(const Spool start, part(none, 0));
  DWS_ASSIGN_OR_RETURN(FetchedObject object, ParseObject(start, job.layout(), none));
  const SliceSelection lacking = stager.Lacking(object.manifest);
  if (lacking->empty()) return std::move(object.manifest);
  // The part repeats the start, and perhaps frames that have already arrived.
  uint64_t end = object.frames_begin;
  uint64_t skip_bytes = end;
  std::vector<SpooledFrame> frames;
  for (const SliceDelta& slice : object.manifest.slices) {
    if (!Selects(lacking, slice.slice)) continue;
    for (const FrameEntry& entry : slice.frames) {
      const bool here = stager.Added(slice.slice, entry);
      if (!here) {
        frames.push_back(
            {.slice = slice.slice, .entry = entry, .spool_offset = end, .classes = slice.classes});
      }
      end += entry.size_bytes;
      if (here && frames.empty()) skip_bytes = end;
    }
  }
  DWS_ASSIGN_OR_RETURN(const Spool rest, part(lacking, skip_bytes));
  if (rest.size_bytes() != end) {
    return DataLossError("a part of a delta object has {} bytes, expected {}", rest.size_bytes(),
                         end);
  }
  DWS_RETURN_IF_ERROR(stager.Add(frames, rest));
  return std::move(object.manifest);
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

Result<PreparedRank> Preparer::FromCapture(const Job& job) {
  PreparedRank prepared;
  const auto describe = [&] {
    return DescribeInto(prepared, job.target, job.rank, job.state().slices.size());
  };
  const EarlyVersion early{.stage = *job.early, .describe = describe};
  std::vector<RankSlice> slices = HeldSlices(job);
  if (!slices.empty()) DWS_RETURN_IF_ERROR(AddFull(job, std::move(slices), prepared, &early));
  return prepared;
}

Result<PreparedRank> Preparer::FromDescription(const Job& job) {
  DWS_ASSIGN_OR_RETURN(Comparison compared,
                       Compare(*this, job.target, job.rank, job.state().slices));
  if (job.way == Way::kFull) compared.differ = HeldSlices(job);
  if (!compared.differ.empty()) {
    DWS_RETURN_IF_ERROR(AddFull(job, std::move(compared.differ), compared.prepared));
  }
  return std::move(compared.prepared);
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
  const std::function<void(const Status&)> refuse = [&](const Status& reason) {
    Reject(job, reason, absl::IsDataLoss(reason) ? slices : std::vector<RankSlice>());
  };
  // If memory is at a version, even one that is not committed yet, a delta may apply to it, so it
  // must not be overwritten here.
  DirectTarget* const direct = job.live.at.has_value() ? nullptr : job.direct;
  DWS_ASSIGN_OR_RETURN(FetchedFull full, sources_.Full(job.piece(),
                                                       {.layout = job.layout(),
                                                        .slices = slices,
                                                        .expected = prepared.published,
                                                        .early = early,
                                                        .refuse = &refuse,
                                                        .direct = direct,
                                                        .rank = job.rank},
                                                       std::move(spool_options)));
  prepared.fetch += clock_.Now() - begin;
  DWS_FAILPOINT("receiver.prepare.after_fetch_full");
  prepared.fetched_bytes += full.spool.size_bytes() + full.direct_bytes;
  const Status verified =
      VerifyFull(job.layout(), slices, full.frames, full.spool, prepared.published, pool_);
  if (!verified.ok()) {
    Reject(job, verified, slices);
    // Not DATA_LOSS: full tensors were the last resort, so there is nothing to fall back to but
    // time.
    return UnavailableError("full tensors do not verify: {}", Message(verified));
  }
  prepared.direct_bytes = full.direct_bytes;
  if (full.direct_bytes == 0) prepared.full = std::move(full);
  prepared.full_slices = std::move(slices);
  return OkStatus();
}

Result<std::optional<Prepared>> Preparer::PrepareAdoption(const LiveState& live,
                                                          const SyncTarget& target) {
  DWS_CHECK(live.ranks.size() == target.ranks.size());
  Prepared prepared{.target = target, .ranks = {}};
  for (uint32_t r = 0; r < target.ranks.size(); ++r) {
    DWS_ASSIGN_OR_RETURN(Comparison compared,
                         Compare(*this, target, TrainerRank(r), live.ranks[r].slices));
    if (!compared.differ.empty()) return std::optional<Prepared>();
    prepared.ranks.push_back(std::move(compared.prepared));
  }
  return std::optional<Prepared>(std::move(prepared));
}

}  // namespace dws
