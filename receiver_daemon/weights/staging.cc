#include "receiver_daemon/weights/staging.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/weights/block_source.h"

namespace dws {
namespace {

// The reason to reject one slice of the manifest, from the results of its frames in one memory.
Status CheckPlaces(const std::string& name, const SliceDelta& delta, const SliceState& live,
                   std::span<const StagedFrames::Frame* const> frames, size_t place_count) {
  for (const StagedFrames::Frame* frame : frames) {
    DWS_CHECK(frame->differences.size() == place_count);
  }
  for (size_t p = 0; p < place_count; ++p) {
    Digest predicted = live.digest;
    Status damaged = OkStatus();
    for (const StagedFrames::Frame* frame : frames) {
      if (damaged.ok()) damaged = frame->status;
      if (damaged.ok()) predicted += frame->differences[p];
    }
    switch (JudgeSlice(live, delta, predicted)) {
      case SliceVerdict::kOtherBase:
        return FailedPreconditionError(
            "{}: the engine has digest {}, the delta needs {}", name,
            live.kind == SliceState::Kind::kDiffers ? "(copies differ)" : ToString(live.digest),
            ToString(delta.before));
      case SliceVerdict::kOtherResult:
        if (!damaged.ok()) return Annotate(damaged, name);
        return DataLossError("{} (copy {}): the delta would give digest {}, expected {}", name, p,
                             ToString(predicted), ToString(delta.after));
      case SliceVerdict::kAdmitted:
        if (!damaged.ok()) return Annotate(damaged, name);
    }
  }
  return OkStatus();
}

// Returns whether a staged frame is the frame that the manifest has.
bool Fits(const SpooledFrame& staged, const SliceDelta& delta, const FrameEntry& entry) {
  return staged.entry.first_block == entry.first_block &&
         staged.entry.block_count == entry.block_count &&
         staged.entry.size_bytes == entry.size_bytes && staged.entry.checksum == entry.checksum &&
         staged.classes == delta.classes;
}

}  // namespace

Status DeltaStager::Add(std::span<const SpooledFrame> frames, const Spool& spool) {
  Group group{.frames = {frames.begin(), frames.end()}, .parts = {}, .kept = {}};
  const FrameSet set{.layout = weights_.layouts().rank(rank_),
                     .rank = rank_,
                     .frames = group.frames,
                     .spool = spool};
  for (const auto& memory : weights_.memory()) {
    DWS_ASSIGN_OR_RETURN(group.parts.emplace_back(), memory->Stage(set, budget_, pool_));
  }
  group.kept.resize(frames.size(), 0);
  for (const SpooledFrame& frame : frames) added_.emplace(frame.slice, frame.entry.first_block);
  groups_.push_back(std::move(group));
  return OkStatus();
}

Status DeltaStager::CheckFrames(const std::string& name, const SliceDelta& delta,
                                std::span<const Place> places) const {
  if (places.size() != delta.frames.size()) {
    return DataLossError("{}: {} frames arrived, the manifest has {}", name, places.size(),
                         delta.frames.size());
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const SpooledFrame& frame = groups_[places[i].group].frames[places[i].frame];
    if (Fits(frame, delta, delta.frames[i])) continue;
    return DataLossError("{}: what arrived as the frame from block {} on is not the manifest's",
                         name, delta.frames[i].first_block);
  }
  return OkStatus();
}

Status DeltaStager::CheckSlice(const SliceDelta& delta, const SliceState& live,
                               std::span<const Place> places) const {
  const RankLayout& layout = weights_.layouts().rank(rank_);
  const std::string name = fmt::format("tensor '{}' slice {}", layout.tensor(delta.slice).name,
                                       layout.slice(delta.slice).slice);
  DWS_RETURN_IF_ERROR(CheckFrames(name, delta, places));
  std::vector<const StagedFrames::Frame*> frames(places.size());
  for (size_t m = 0; m < weights_.memory().size(); ++m) {
    for (size_t i = 0; i < places.size(); ++i) {
      frames[i] = &groups_[places[i].group].parts[m]->frames()[places[i].frame];
    }
    DWS_RETURN_IF_ERROR(CheckPlaces(name, delta, live, frames,
                                    weights_.memory()[m]->PlaceCount(rank_, delta.slice)));
  }
  return OkStatus();
}

Result<StagedDelta> DeltaStager::Finish(const DeltaManifest& manifest,
                                        std::span<const SliceState> live) {
  DWS_CHECK(live.size() == weights_.layouts().rank(rank_).slice_count());
  std::vector<std::vector<Place>> places(live.size());  // by rank slice
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t f = 0; f < groups_[g].frames.size(); ++f) {
      places[groups_[g].frames[f].slice.value()].push_back({.group = g, .frame = f});
    }
  }
  StagedDelta staged;
  for (const SliceDelta& delta : manifest.slices) {
    if (!weights_.Holds(rank_, delta.slice)) continue;
    const std::span<const Place> of_slice = places[delta.slice.value()];
    Status status = CheckSlice(delta, live[delta.slice.value()], of_slice);
    if (!status.ok()) {
      staged.rejected.push_back({.slice = delta.slice, .reason = std::move(status)});
      continue;
    }
    for (const Place& place : of_slice) groups_[place.group].kept[place.frame] = 1;
  }
  staged.in_place = budget_.passed();
  if (!staged.in_place) {
    DWS_ASSIGN_OR_RETURN(const bool sealed, Seal(staged));
    staged.in_place = !sealed;
  }
  if (staged.in_place) staged.groups.clear();
  return staged;
}

Result<bool> DeltaStager::Seal(StagedDelta& staged) {
  for (Group& group : groups_) {
    for (const auto& part : group.parts) {
      const Status sealed = part->Seal(group.kept);
      if (absl::IsResourceExhausted(sealed)) return false;  // treated as over the cap
      DWS_RETURN_IF_ERROR(sealed);
    }
    staged.groups.push_back(std::move(group.parts));
  }
  return true;
}

void AddToList(std::span<const StagedParts> groups, ScatterList& list) {
  for (const StagedParts& parts : groups) {
    if (list.size() < parts.size()) list.resize(parts.size());
    for (size_t m = 0; m < parts.size(); ++m) list[m].push_back(parts[m].get());
  }
}

Status Scatter(const EngineWeights& weights, const ScatterList& list, ThreadPool& pool) {
  DWS_CHECK(list.size() <= weights.memory().size());
  Status first = OkStatus();
  for (size_t m = 0; m < list.size() && first.ok(); ++m) {
    first = weights.memory()[m]->Scatter(list[m], pool);
  }
  // After a failure too: no write is in flight when this returns.
  for (size_t m = 0; m < list.size(); ++m) first.Update(weights.memory()[m]->Synchronize());
  return first;
}

Status VerifyFull(const RankLayout& layout, std::span<const RankSlice> slices,
                  std::span<const SpooledFrame> frames, const Spool& spool,
                  std::span<const Digest> expected, ThreadPool& pool) {
  DWS_CHECK(expected.size() == layout.slice_count());
  std::vector<Digest> digests(frames.size());
  std::vector<Status> statuses(frames.size());
  std::vector<BlockScratch> scratch(pool.worker_count());
  pool.ParallelFor(frames.size(), [&](size_t index, size_t worker) {
    const RankLayout::SliceEntry& slice = layout.slice(frames[index].slice);
    // A file may have lost bytes that were written to it.
    if (frames[index].arrived.has_value() && !spool.on_disk()) {
      digests[index] = *frames[index].arrived;
      return;
    }
    statuses[index] = ForEachBlock(
        slice, frames[index], spool, nullptr, scratch[worker],
        [&](uint32_t block, const DecodedBlock& decoded) -> Status {
          if (decoded.kind != DecodedBlock::Kind::kDense) {
            return DataLossError("block {} of a full tensor is not a full block", block);
          }
          digests[index] += DigestBytes(decoded.dense, slice.BlockFirstWord(block));
          return OkStatus();
        });
  });
  size_t next = 0;
  for (const RankSlice slice : slices) {
    const RankLayout::SliceEntry& entry = layout.slice(slice);
    const std::string name =
        fmt::format("full tensor '{}' slice {}", layout.tensor(slice).name, entry.slice);
    Digest digest;
    uint32_t blocks = 0;
    for (; next < frames.size() && frames[next].slice == slice; ++next) {
      if (!statuses[next].ok()) return Annotate(statuses[next], name);
      if (frames[next].entry.first_block != blocks) {
        return DataLossError("{}: a frame begins at block {}, expected {}", name,
                             frames[next].entry.first_block, blocks);
      }
      blocks += frames[next].entry.block_count;
      digest += digests[next];
    }
    if (blocks != entry.blocks) {
      return DataLossError("{}: {} blocks arrived, expected {}", name, blocks, entry.blocks);
    }
    if (digest != expected[slice.value()]) {
      return DataLossError("{}: arrived with digest {}, expected {}", name, ToString(digest),
                           ToString(expected[slice.value()]));
    }
  }
  if (next != frames.size())
    return DataLossError("{} frames were not asked for", frames.size() - next);
  return OkStatus();
}

Status ApplyFramesInPlace(const EngineWeights& weights, TrainerRank rank,
                          std::span<const SpooledFrame> frames, const Spool& spool,
                          ThreadPool& pool) {
  const FrameSet set{
      .layout = weights.layouts().rank(rank), .rank = rank, .frames = frames, .spool = spool};
  for (const auto& memory : weights.memory()) {
    DWS_RETURN_IF_ERROR(memory->ApplyInPlace(set, pool));
    DWS_RETURN_IF_ERROR(memory->Synchronize());
  }
  return OkStatus();
}

}  // namespace dws
