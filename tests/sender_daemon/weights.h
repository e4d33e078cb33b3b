// Weights for sender tests: bytes of every rank slice in slice order, a source that reads them, and
// versions published from them the way the daemon does it.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "common/base/check.h"
#include "common/base/threads/thread_pool.h"
#include "common/delta/bits/ordinal.h"
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

// Tensors of several element types, one of many blocks and one of few bytes.
inline RankLayout MixedLayout() {
  return MakeLayout({{.tensor = {.name = "a_bf16", .dtype = DType::kBF16, .shape = {20, 65'536}}},
                     {.tensor = {.name = "b_bf16", .dtype = DType::kBF16, .shape = {1000}}},
                     {.tensor = {.name = "c_f16", .dtype = DType::kF16, .shape = {300, 401}}},
                     {.tensor = {.name = "d_u8", .dtype = DType::kU8, .shape = {70'001}}}});
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

// Flips bits of about `density` of all bytes.
inline void Perturb(std::vector<std::byte>& slice, double density, std::mt19937_64& random) {
  const auto count = static_cast<size_t>(static_cast<double>(slice.size()) * density) + 1;
  for (size_t i = 0; i < count && !slice.empty(); ++i) {
    slice[random() % slice.size()] ^= static_cast<std::byte>(1U << (random() % 8));
  }
}
inline void Perturb(Weights& weights, double density, std::mt19937_64& random) {
  for (auto& slice : weights) Perturb(slice, density, random);
}

// Weights of many magnitudes: 16-bit floats between 2^-15 and 2^-3 of a BF16.
inline Weights ManyMagnitudes(const RankLayout& layout, std::mt19937_64& random) {
  Weights weights = RandomWeights(layout, random);
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    if (ElementBytes(layout.slice(RankSlice(s)).dtype) != 2) continue;
    for (size_t at = 0; at < weights[s].size(); at += 2) {
      const uint64_t bits = random();
      StoreLe(weights[s].data() + at,
              static_cast<uint16_t>((bits & 0x807F) | (112 + (bits >> 32) % 13) << 7));
    }
  }
  return weights;
}

// An update of one size: the larger an element, the more rarely it is rounded to another value.
// `chance` is that of the smallest: about a seventh of it is the density.
inline void Update(const RankLayout& layout, Weights& weights, std::mt19937_64& random,
                   double chance = 0.375) {
  const auto smallest = static_cast<uint64_t>(std::min(chance, 1.0) * 0x10000);
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    if (ElementBytes(layout.slice(RankSlice(s)).dtype) != 2) continue;
    for (size_t at = 0; at < weights[s].size(); at += 2) {
      const auto bits = LoadLe<uint16_t>(weights[s].data() + at);
      const uint64_t dice = random();
      const int rarity = std::clamp((bits >> 7 & 0xFF) - 112, 0, 63);  // a step may leave the range
      if ((dice & 0xFFFF) >= smallest >> rarity) continue;
      const auto step = static_cast<uint16_t>((dice >> 32 & 1) != 0 ? 1 : 0xFFFF);
      const auto ordinal = static_cast<uint16_t>(ToOrdinal(bits, Mapping::kFloat) + step);
      StoreLe(weights[s].data() + at, FromOrdinal(ordinal, Mapping::kFloat));
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
                                  DeltaProfile profile = DeltaProfile::kFast,
                                  std::function<void()> on_fetchable = nullptr) {
  Capture capture(*state.snapshot, pool, WeightVersion(version), profile, FullCause::kNone,
                  std::move(on_fetchable));
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
