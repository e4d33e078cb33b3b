// Weights for sender tests: bytes of every rank slice in slice order, a source that reads them, and
// versions published from them the way the daemon does it.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/base/check.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/layout.h"
#include "common/model/limits.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

using Weights = std::vector<std::vector<std::byte>>;  // by rank slice

class WeightsSource final : public WeightSource {
 public:
  WeightsSource(const RankLayout& layout, const Weights& weights)
      : layout_(layout), weights_(weights) {}
  void Read(BlockRef ref, MutableByteSpan block) const override {
    std::memcpy(block.data(), At(ref, block.size()).data(), block.size());
  }
  // Every second block has to be read, so that tests cover both ways.
  ByteSpan View(BlockRef ref, size_t size_bytes) const override {
    return ref.block % 2 == 0 ? At(ref, size_bytes) : ByteSpan();
  }

 private:
  ByteSpan At(BlockRef ref, size_t size_bytes) const {
    const size_t offset =
        size_t{ref.block} * limits::kBlockElements * ElementBytes(layout_.slice(ref.slice).dtype);
    return ByteSpan(weights_[ref.slice.value()]).subspan(offset, size_bytes);
  }

  const RankLayout& layout_;
  const Weights& weights_;
};

inline RankLayout MakeLayout(std::vector<Shard> shards) {
  auto layout = RankLayout::Create(std::move(shards));
  DWS_CHECK(layout.ok());
  return *std::move(layout);
}

// Two tensors, three slices, blocks with odd tails.
inline RankLayout SmallLayout() {
  return MakeLayout(
      {{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {300, 1001}, .cuts = {{0, {100}}}},
        .cells = {{0, 2}}},
       {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {70'001}}}});
}

inline Weights RandomWeights(const RankLayout& layout, std::mt19937_64& random) {
  Weights weights;
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    std::vector<std::byte> bytes(slice.size_bytes());
    for (size_t at = 0; at < bytes.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, std::min<size_t>(bytes.size() - at, 8));
    }
    weights.push_back(std::move(bytes));
  }
  return weights;
}

// Flips low bits of about `density` of all bytes.
inline void Perturb(Weights& weights, double density, std::mt19937_64& random) {
  for (auto& slice : weights) {
    const auto count = static_cast<size_t>(static_cast<double>(slice.size()) * density) + 1;
    for (size_t i = 0; i < count && !slice.empty(); ++i) {
      slice[random() % slice.size()] ^= static_cast<std::byte>(1U << (random() % 8));
    }
  }
}

inline RankStatePtr MakeState(const RankLayout& layout, DeltaLogLimits limits) {
  auto snapshot = Snapshot::Create(layout);
  DWS_CHECK(snapshot.ok());
  return std::make_shared<const RankState>(
      RankState{.stream = {.incarnation = 1, .id_hi = 2, .id_lo = 3},
                .rank_epoch = RankEpoch(1),
                .declared = layout,
                .snapshot = *std::move(snapshot),
                .log = std::make_shared<DeltaLog>(layout, limits)});
}

// Captures `weights` as `version`.
inline CapturedVersion CaptureAll(const RankState& state, ThreadPool& pool, uint64_t version,
                                  const Weights& weights,
                                  DeltaProfile profile = DeltaProfile::kFast) {
  Capture capture(*state.snapshot, pool, WeightVersion(version), profile);
  WeightsSource source(state.layout(), weights);
  DWS_CHECK(capture.Blocks(AllBlocks(state.layout()), source).ok());
  auto captured = capture.Finish();
  DWS_CHECK(captured.ok());
  return *std::move(captured);
}

inline RetainedVersionPtr PublishAll(const RankStatePtr& state, ThreadPool& pool, uint64_t version,
                                     const Weights& weights,
                                     DeltaProfile profile = DeltaProfile::kFast) {
  RetainedVersionPtr sealed =
      Seal({.state = state, .captured = CaptureAll(*state, pool, version, weights, profile)});
  state->log->Append(sealed);
  return sealed;
}

inline Weights SnapshotWeights(const RankState& state) {
  Weights weights;
  for (uint32_t s = 0; s < state.layout().slice_count(); ++s) {
    const ByteSpan bytes = state.snapshot->SliceBytes(RankSlice(s));
    weights.emplace_back(bytes.begin(), bytes.end());
  }
  return weights;
}

inline std::vector<Digest> DigestsOf(const RankLayout& layout, const Weights& weights) {
  std::vector<Digest> digests;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    digests.push_back(DigestBytes(weights[s], layout.slice(RankSlice(s)).first_word));
  }
  return digests;
}

}  // namespace dws
