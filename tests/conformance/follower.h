// A minimal receiver: brings weights to a target, checks them against the
// published digests, and only then reports them as committed.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/model/block_range.h"
#include "common/sources/source_chain.h"
#include "common/spool/fetched_object.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/transfer/subscription.h"
#include "tests/common/delta/old_state.h"
#include "tests/conformance/gpu_side.h"
#include "tests/fakes/eventually.h"
#include "tests/sender_daemon/object_apply.h"

namespace dws {

// What a receiver has of its senders.
struct Group {
  Senders& senders;
  SourceChain& sources;
};

class Follower {
 public:
  explicit Follower(const RankLayout& layout) : layout_(layout) {
    for (const auto& slice : layout.slices()) weights_.emplace_back(slice.size_bytes());
  }

  static Spool::Options SpoolOptions() {
    return {.folder = "/tmp",
            .memory_bytes_max = uint64_t{1} << 24,
            .size_bytes_max = limits::kObjectBytesMax};
  }

  static SyncTarget Await(Subscription& subscription, uint64_t version) {
    std::optional<SyncTarget> target;
    const bool came = Eventually([&] {
      target = subscription.Target();
      return target.has_value() && target->version == WeightVersion(version);
    });
    INFO(subscription.MissingTarget());
    REQUIRE(came);
    return *target;
  }

  // By a delta if it is available, otherwise in full. Returns "delta", "full", or the error.
  std::string Follow(const Group& group, Subscription& subscription, uint64_t version) {
    const SyncTarget target = Await(subscription, version);
    if (at_.has_value() && at_->stream == target.stream) {
      const Status status = TakeDelta(group, target);
      if (status.ok()) return Commit(group, subscription, target, "delta");
      if (!FallsBackToFull(status)) return ToString(status);
      if (!absl::IsAborted(status)) {
        ++rejected_;
        group.senders.Rejected(target, TrainerRank(0),
                               {.last_good = at_->version, .reason = status, .slices = {}});
      }
    }
    const Status status = TakeFull(group, target);
    if (!status.ok()) return ToString(status);
    return Commit(group, subscription, target, "full");
  }

  // Replaces the weights by full tensors of the target.
  Status TakeFull(const Group& group, const SyncTarget& target,
                  const Spool::Options& options = SpoolOptions()) {
    std::vector<RankSlice> slices;
    for (uint32_t s = 0; s < layout_.slice_count(); ++s) slices.emplace_back(s);
    DWS_ASSIGN_OR_RETURN(const Description described,
                         group.senders.Describe(target, TrainerRank(0)));
    const std::function<void(const Status&)> refuse = [this](const Status& reason) {
      refused_.push_back(reason);
    };
    const FullWant want{.layout = layout_,
                        .slices = slices,
                        .expected = described.slices,
                        .refuse = &refuse,
                        .device = gpu_};
    DWS_ASSIGN_OR_RETURN(const FetchedFull full,
                         group.sources.Full({target, TrainerRank(0)}, want, options));
    Weights next = weights_;
    for (const RankSlice slice : full.on_device) next[slice.value()] = gpu_->Of(slice);
    std::vector<std::byte> buffer;
    for (const SpooledFrame& frame : full.frames) {
      DWS_ASSIGN_OR_RETURN(const ByteSpan bytes,
                           full.spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer));
      if (!frame.arrived.has_value()) {
        ApplyFrame(layout_, frame.slice, bytes, frame.entry, next);
        continue;
      }
      const BlockRange range{.slice = frame.slice,
                             .first_block = frame.entry.first_block,
                             .block_count = frame.entry.block_count};
      std::copy(
          bytes.begin(), bytes.end(),
          next[frame.slice.value()].begin() + static_cast<ptrdiff_t>(FirstByte(layout_, range)));
    }
    return Prove(group, target, std::move(next));
  }

  // Its weights may come from a GPU; null: they may not.
  void Use(GpuTarget* gpu) { gpu_ = gpu; }
  const Weights& weights() const { return weights_; }
  const std::optional<VersionAt>& at() const { return at_; }
  int rejected() const { return rejected_; }
  // What TakeFull had to tell the sender.
  const std::vector<Status>& refused() const { return refused_; }

 private:
  Status TakeDelta(const Group& group, const SyncTarget& target) {
    const samples::OldState old(layout_, weights_);
    DWS_ASSIGN_OR_RETURN(
        Spool spool,
        group.sources.Object({target, TrainerRank(0)},
                             {.base = at_->version, .slices = std::nullopt, .old = &old},
                             SpoolOptions()));
    DWS_ASSIGN_OR_RETURN(const FetchedObject object, ParseObject(spool, layout_));
    DWS_RETURN_IF_ERROR(CheckManifest(object.manifest, target.at(), TrainerRank(0), at_->version));
    Weights next = weights_;
    std::vector<std::byte> buffer;
    for (const SpooledFrame& frame : object.frames) {
      DWS_ASSIGN_OR_RETURN(const ByteSpan bytes,
                           spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer));
      DWS_RETURN_IF_ERROR(ParseFrame(bytes, frame.entry).status());
      ApplyFrame(layout_, frame.slice, bytes, frame.entry, next, frame.classes);
    }
    for (const SliceDelta& slice : object.manifest.slices) {
      if (DigestsOf(layout_, next)[slice.slice.value()] == slice.after) continue;
      return DataLossError("slice {} has another digest", slice.slice.value());
    }
    return Prove(group, target, std::move(next));
  }

  Status Prove(const Group& group, const SyncTarget& target, Weights next) {
    DWS_ASSIGN_OR_RETURN(const Description described,
                         group.senders.Describe(target, TrainerRank(0)));
    if (described.slices != DigestsOf(layout_, next)) return DataLossError("other digests");
    if (StateToken(described.slices) != described.state_token) return DataLossError("other token");
    weights_ = std::move(next);
    state_token_ = described.state_token;
    return OkStatus();
  }

  std::string Commit(const Group& group, Subscription& subscription, const SyncTarget& target,
                     std::string how) {
    group.senders.Staged(target, TrainerRank(0));
    at_ = target.at();
    subscription.SetLive(at_, {state_token_});
    group.senders.Committed(target, TrainerRank(0),
                            {.state_token = state_token_, .pause_seconds = 0.25});
    return how;
  }

  const RankLayout& layout_;
  Weights weights_;
  std::optional<VersionAt> at_;
  Digest state_token_;  // of the committed version
  GpuTarget* gpu_ = nullptr;
  int rejected_ = 0;
  std::vector<Status> refused_;
};

}  // namespace dws
