#include "common/sync_state/receiver_plan.h"

#include <charconv>

#include "common/base/check.h"

namespace dws {
namespace {

constexpr std::string_view kMaxBehindPrefix = "max-behind:";

}  // namespace

ReceiverStep NextStep(const ReceiverView& view) {
  if (view.drained) return ReceiverStep::kHold;
  if (view.resync) return ReceiverStep::kResync;
  const bool proved = view.live.has_value() && !view.drifted;
  // A target below the version in memory is an old announcement: versions never go back inside a
  // stream.
  const bool reached = !view.target.has_value() ||
                       (view.live.has_value() && view.live->stream == view.target->stream &&
                        view.live->version >= view.target->version);
  if (proved && reached) return ReceiverStep::kCurrent;
  if (!view.target.has_value()) return ReceiverStep::kAwait;
  return view.live.has_value() ? ReceiverStep::kAdvance : ReceiverStep::kAdopt;
}

std::optional<VersionAt> Adoptable(const std::optional<VersionAt>& intended,
                                   const std::optional<VersionAt>& committed,
                                   const VersionAt& target) {
  for (const std::optional<VersionAt>& version : {intended, committed}) {
    if (!version.has_value() || version->stream != target.stream) continue;
    return version->version < target.version ? version : std::nullopt;
  }
  return std::nullopt;
}

std::vector<TrainerRank> RanksPublishedAgain(const LiveState& live, const SyncTarget& target) {
  std::vector<TrainerRank> ranks;
  if (live.at != target.at()) return ranks;
  DWS_CHECK(live.ranks.size() == target.ranks.size());
  for (uint32_t r = 0; r < target.ranks.size(); ++r) {
    const std::optional<Digest>& token = target.ranks[r].state_token;
    if (token.has_value() && *token != live.ranks[r].state_token) ranks.emplace_back(r);
  }
  return ranks;
}

Result<CommitPolicy> ParseCommitPolicy(std::string_view text) {
  if (text == "immediate") return CommitPolicy{.kind = CommitPolicy::Kind::kImmediate};
  if (text == "boundary") return CommitPolicy{.kind = CommitPolicy::Kind::kBoundary};
  if (text.starts_with(kMaxBehindPrefix)) {
    const std::string_view digits = text.substr(kMaxBehindPrefix.size());
    CommitPolicy policy{.kind = CommitPolicy::Kind::kMaxBehind};
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), policy.max_behind);
    const bool whole = error == std::errc() && end == digits.data() + digits.size();
    if (whole && policy.max_behind > 0) return policy;
    return InvalidArgumentError(
        "'{}' has to end with a number of versions, 1 or more: max-behind:4", text);
  }
  return InvalidArgumentError("'{}' is none of immediate, boundary, max-behind:K", text);
}

std::string ToString(const CommitPolicy& policy) {
  switch (policy.kind) {
    case CommitPolicy::Kind::kImmediate:
      return "immediate";
    case CommitPolicy::Kind::kBoundary:
      return "boundary";
    case CommitPolicy::Kind::kMaxBehind:
      return fmt::format("{}{}", kMaxBehindPrefix, policy.max_behind);
  }
  return "";
}

uint64_t VersionsBehind(const std::optional<VersionAt>& live, const VersionAt& newest) {
  const bool comparable = live.has_value() && live->stream == newest.stream;
  const uint64_t reached = comparable ? live->version.value() : 0;
  return newest.version.value() > reached ? newest.version.value() - reached : 0;
}

bool MayCommitNow(const CommitPolicy& policy, const CommitView& view) {
  if (!policy.holds() || !view.proved || view.resync) return true;
  return policy.kind == CommitPolicy::Kind::kMaxBehind &&
         VersionsBehind(view.live, view.newest) > policy.max_behind;
}

std::optional<WeightVersion> VersionIn(const std::optional<VersionAt>& live,
                                       const StreamId& stream) {
  if (!live.has_value() || live->stream != stream) return std::nullopt;
  return live->version;
}

std::optional<WeightVersion> DeltaBase(Way way, const std::optional<VersionAt>& live,
                                       const VersionAt& target) {
  if (way != Way::kDelta) return std::nullopt;
  const std::optional<WeightVersion> base = VersionIn(live, target.stream);
  return base.has_value() && *base < target.version ? base : std::nullopt;
}

bool FallsBackToFull(const Status& status) {
  return absl::IsAborted(status) || absl::IsDataLoss(status) ||
         absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status) ||
         absl::IsNotFound(status) || absl::IsInvalidArgument(status);
}

Status CheckManifest(const DeltaManifest& manifest, const VersionAt& target, TrainerRank rank,
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

Result<PublishedState> Follow(const std::vector<Digest>& before, const DeltaManifest& manifest) {
  PublishedState state{.slices = before, .state_token = {}};
  for (const SliceDelta& slice : manifest.slices) {
    state.slices[slice.slice.value()] = slice.after;
  }
  state.state_token = StateToken(state.slices);
  if (state.state_token == manifest.state_token) return state;
  return DataLossError("the delta leads to state {}, its manifest says {}: the base differs",
                       ToString(state.state_token), ToString(manifest.state_token));
}

SliceVerdict JudgeSlice(const SliceState& live, const SliceDelta& delta, const Digest& predicted) {
  if (!live.Matches(delta.before)) return SliceVerdict::kOtherBase;
  return predicted == delta.after ? SliceVerdict::kAdmitted : SliceVerdict::kOtherResult;
}

std::vector<RankSlice> SlicesThatDiffer(std::span<const SliceState> live,
                                        std::span<const Digest> described) {
  DWS_CHECK(live.size() == described.size());
  std::vector<RankSlice> differ;
  for (uint32_t s = 0; s < live.size(); ++s) {
    if (!live[s].Matches(described[s])) differ.emplace_back(s);
  }
  return differ;
}

std::vector<RankSlice> DriftedUntouched(const LiveState::Rank& live,
                                        const DeltaManifest& manifest) {
  std::vector<RankSlice> slices;
  size_t next = 0;
  for (uint32_t s = 0; s < live.slices.size(); ++s) {
    while (next < manifest.slices.size() && manifest.slices[next].slice < RankSlice(s)) ++next;
    const bool touched =
        next < manifest.slices.size() && manifest.slices[next].slice == RankSlice(s);
    if (!touched && !live.slices[s].Matches(live.published[s])) slices.emplace_back(s);
  }
  return slices;
}

}  // namespace dws
