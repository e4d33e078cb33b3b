#include "receiver_daemon/prepare.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/delta/object.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Whether full tensors may still get us there: the delta is not to be had, or is no good.
bool CanRepair(const Status& status) {
  return absl::IsAborted(status) || absl::IsDataLoss(status) ||
         absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status) ||
         absl::IsNotFound(status) || absl::IsInvalidArgument(status);
}

struct ParsedObject {
  DeltaManifest manifest;
  std::vector<SpooledFrame> frames;
};

Result<ParsedObject> ParseObject(const Spool& spool, const RankLayout& layout) {
  std::vector<std::byte> buffer;
  DWS_ASSIGN_OR_RETURN(const ByteSpan start, spool.Read(0, kObjectHeaderBytes, buffer));
  DWS_ASSIGN_OR_RETURN(const ObjectHeader header, ParseObjectHeader(start));
  if (header.total_bytes() != spool.size_bytes()) {
    return DataLossError("a delta object of {} bytes says that it has {}", spool.size_bytes(),
                         header.total_bytes());
  }
  const uint64_t frames_begin = header.total_bytes() - header.frames_bytes;
  DWS_ASSIGN_OR_RETURN(const ByteSpan head, spool.Read(0, frames_begin, buffer));
  ParsedObject object;
  DWS_ASSIGN_OR_RETURN(object.manifest, ParseObjectManifest(head, layout));
  for (const SliceDelta& slice : object.manifest.slices) {
    for (const FrameEntry& entry : slice.frames) {
      object.frames.push_back(
          {.slice = slice.slice, .entry = entry, .spool_offset = frames_begin + entry.offset});
    }
  }
  return object;
}

Status CheckManifest(const DeltaManifest& manifest, const SyncTarget& target, TrainerRank rank,
                     WeightVersion base) {
  if (manifest.stream == target.stream && manifest.trainer_rank == rank &&
      manifest.version == target.version && manifest.base_version == base) {
    return OkStatus();
  }
  return DataLossError(
      "a delta object is stream {} rank {} version {} from {}, expected stream {} rank {} version "
      "{} from {}",
      ToString(manifest.stream), manifest.trainer_rank.value(), manifest.version.value(),
      manifest.base_version.value(), ToString(target.stream), rank.value(), target.version.value(),
      base.value());
}

// What a rank publishes at a target, and which slices of live memory are not that.
struct Comparison {
  PreparedRank prepared;  // nothing to write yet
  std::vector<RankSlice> differ;
};

Result<Comparison> Compare(SenderGroup& senders, const SyncTarget& target, TrainerRank rank,
                           const std::vector<SliceState>& live) {
  DWS_ASSIGN_OR_RETURN(Description described, senders.Describe(target, rank));
  if (described.slices.size() != live.size() ||
      StateToken(described.slices) != described.state_token) {
    return DataLossError(
        "a description of {} slices does not fit its token or the layout's {} slices",
        described.slices.size(), live.size());
  }
  Comparison compared;
  for (uint32_t s = 0; s < live.size(); ++s) {
    if (!live[s].Matches(described.slices[s])) compared.differ.emplace_back(s);
  }
  compared.prepared.published = std::move(described.slices);
  compared.prepared.state_token = described.state_token;
  return compared;
}

}  // namespace

Spool::Options Preparer::SpoolOptions(const Job& job) const {
  return {.folder = options_.spool_folder,
          .memory_bytes_max = options_.staging_bytes_max / job.target.ranks.size(),
          .size_bytes_max = limits::kObjectBytesMax};
}

void Preparer::Reject(const Job& job, const Status& reason, std::vector<RankSlice> slices) {
  LogWarning("delta_rejected", {{"version", job.target.version.value()},
                                {"rank", job.rank.value()},
                                {"slices", slices.size()},
                                {"reason", Message(reason)}});
  Rejection rejection{.last_good = std::nullopt, .reason = reason, .slices = std::move(slices)};
  if (job.live.at.has_value() && job.live.at->stream == job.target.stream) {
    rejection.last_good = job.live.at->version;
  }
  senders_.Rejected(job.target, job.rank, rejection);
}

Result<Prepared> Preparer::Prepare(const EngineWeights& weights, const LiveState& live,
                                   const SyncTarget& target) {
  DWS_CHECK(live.ranks.size() == target.ranks.size());
  Prepared prepared{.target = target, .ranks = {}};
  prepared.ranks.resize(target.ranks.size());
  // Ranks are different machines: their transfers run side by side.
  std::vector<Status> statuses(target.ranks.size());
  pool_.ParallelFor(target.ranks.size(), [&](size_t index, size_t) {
    const Job job{.weights = weights,
                  .live = live,
                  .target = target,
                  .rank = TrainerRank(static_cast<uint32_t>(index))};
    Result<PreparedRank> rank = PrepareRank(job);
    if (rank.ok()) {
      prepared.ranks[index] = *std::move(rank);
    } else {
      statuses[index] = Annotate(rank.status(), fmt::format("trainer rank {}", index));
    }
  });
  for (const Status& status : statuses) DWS_RETURN_IF_ERROR(status);
  return prepared;
}

Result<PreparedRank> Preparer::PrepareRank(const Job& job) {
  if (job.live.at.has_value() && job.live.at->stream == job.target.stream) {
    Result<PreparedRank> delta = FromDelta(job);
    if (delta.ok() || !CanRepair(delta.status())) return delta;
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

Result<PreparedRank> Preparer::FromDelta(const Job& job) {
  const WeightVersion base = job.live.at->version;
  DWS_ASSIGN_OR_RETURN(Spool spool,
                       senders_.FetchObject(job.target, job.rank, base, SpoolOptions(job)));
  DWS_FAILPOINT("receiver.prepare.after_fetch");
  DWS_ASSIGN_OR_RETURN(ParsedObject object, ParseObject(spool, job.layout()));
  DWS_RETURN_IF_ERROR(CheckManifest(object.manifest, job.target, job.rank, base));

  PreparedRank prepared;
  prepared.fetched_bytes = spool.size_bytes();
  prepared.published = job.state().published;
  for (const SliceDelta& slice : object.manifest.slices) {
    prepared.published[slice.slice.value()] = slice.after;
  }
  prepared.state_token = StateToken(prepared.published);
  if (prepared.state_token != object.manifest.state_token) {
    return DataLossError("the delta leads to state {}, its manifest says {}: the base differs",
                         ToString(prepared.state_token), ToString(object.manifest.state_token));
  }

  StagedDelta staged =
      StageDelta(job.weights, job.rank, object.manifest, object.frames, spool, job.state().slices,
                 options_.staging_bytes_max / job.target.ranks.size(), pool_);
  prepared.writes = std::move(staged.writes);
  std::vector<RankSlice> rejected;
  for (const RejectedSlice& slice : staged.rejected) rejected.push_back(slice.slice);
  if (staged.in_place) {
    for (const SpooledFrame& frame : object.frames) {
      if (job.weights.Places(job.rank, frame.slice).empty()) continue;
      if (std::binary_search(rejected.begin(), rejected.end(), frame.slice)) continue;
      prepared.delta_frames.push_back(frame);
      if (prepared.delta_slices.empty() || prepared.delta_slices.back() != frame.slice) {
        prepared.delta_slices.push_back(frame.slice);
      }
    }
    prepared.delta_spool = std::move(spool);
  }
  if (!rejected.empty()) {
    Reject(job, staged.rejected.front().reason, rejected);
    DWS_RETURN_IF_ERROR(AddFull(job, std::move(rejected), prepared));
  }
  return prepared;
}

Result<PreparedRank> Preparer::FromDescription(const Job& job) {
  DWS_ASSIGN_OR_RETURN(Comparison compared,
                       Compare(senders_, job.target, job.rank, job.state().slices));
  if (!compared.differ.empty()) {
    DWS_RETURN_IF_ERROR(AddFull(job, std::move(compared.differ), compared.prepared));
  }
  return std::move(compared.prepared);
}

Status Preparer::AddFull(const Job& job, std::vector<RankSlice> slices, PreparedRank& prepared) {
  DWS_ASSIGN_OR_RETURN(FetchedFull full, senders_.FetchFull(job.target, job.rank, job.layout(),
                                                            slices, SpoolOptions(job)));
  DWS_FAILPOINT("receiver.prepare.after_fetch_full");
  prepared.fetched_bytes += full.spool.size_bytes();
  const Status verified =
      VerifyFull(job.layout(), slices, full.frames, full.spool, prepared.published, pool_);
  if (!verified.ok()) {
    Reject(job, verified, slices);
    // Not DATA_LOSS: full tensors were the last resort, so there is nothing to fall back to but
    // time.
    return UnavailableError("full tensors do not verify: {}", Message(verified));
  }
  prepared.full = std::move(full);
  prepared.full_slices = std::move(slices);
  return OkStatus();
}

Result<std::optional<Prepared>> Preparer::PrepareAdoption(const LiveState& live,
                                                          const SyncTarget& target) {
  DWS_CHECK(live.ranks.size() == target.ranks.size());
  Prepared prepared{.target = target, .ranks = {}};
  for (uint32_t r = 0; r < target.ranks.size(); ++r) {
    DWS_ASSIGN_OR_RETURN(Comparison compared,
                         Compare(senders_, target, TrainerRank(r), live.ranks[r].slices));
    if (!compared.differ.empty()) return std::optional<Prepared>();
    prepared.ranks.push_back(std::move(compared.prepared));
  }
  return std::optional<Prepared>(std::move(prepared));
}

}  // namespace dws
