// A model of weights that is small and exact: each trainer rank owns a few slices of a few words.
// Digests, manifests and state tokens are the product's own; steps are added modulo 2^64 like those
// of the codec, so that deltas can be squashed and undone. A torn or stale byte is a wrong word.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/delta_manifest.h"
#include "common/sync_state/receiver_plan.h"

namespace dws::sim {

inline constexpr uint32_t kSlices = 3;  // of a trainer rank
inline constexpr uint32_t kWords = 2;   // of a slice
inline constexpr uint64_t kSliceBytes = kWords * 8;

using Slice = std::array<uint64_t, kWords>;
using RankWeights = std::array<Slice, kSlices>;

Digest DigestOf(uint32_t slice, const Slice& words);
std::vector<Digest> DigestsOf(const RankWeights& weights);
std::string TensorName(uint32_t trainer_rank);
std::shared_ptr<const RankLayout> LayoutOf(uint32_t trainer_rank);

// The changes of one rank in one version, or in several consecutive versions.
struct Delta {
  DeltaManifest manifest;
  std::array<Slice, kSlices> steps = {};

  uint64_t bytes() const { return 8 + manifest.slices.size() * kSliceBytes; }
};

Delta Diff(const VersionAt& target, uint32_t trainer_rank, WeightVersion base,
           const RankWeights& before, const RankWeights& after);
// `chain`: consecutive, not empty.
Delta Squash(const std::vector<const Delta*>& chain);
// The object that a sender serves for `delta`, which leads to `after`.
std::vector<std::byte> ObjectOf(const Delta& delta, const RankWeights& after);
// A slice in full, as a frame.
std::vector<std::byte> BytesOf(const Slice& words);
// Undoes a version's steps.
void Undo(const Delta& delta, uint32_t slice, Slice& words);

}  // namespace dws::sim
