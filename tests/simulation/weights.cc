#include "tests/simulation/weights.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "tests/common/delta/objects.h"

namespace dws::sim {

std::vector<std::byte> BytesOf(const Slice& words) {
  std::vector<std::byte> bytes(kSliceBytes);
  std::memcpy(bytes.data(), words.data(), kSliceBytes);
  return bytes;
}

Digest DigestOf(uint32_t slice, const Slice& words) {
  Digest digest;
  for (uint32_t w = 0; w < kWords; ++w) digest += MixWord(slice * kWords + w, words[w]);
  return digest;
}

std::vector<Digest> DigestsOf(const RankWeights& weights) {
  std::vector<Digest> digests;
  for (uint32_t s = 0; s < kSlices; ++s) digests.push_back(DigestOf(s, weights[s]));
  return digests;
}

std::string TensorName(uint32_t trainer_rank) { return "rank" + std::to_string(trainer_rank); }

std::shared_ptr<const RankLayout> LayoutOf(uint32_t trainer_rank) {
  static std::map<uint32_t, std::shared_ptr<const RankLayout>> layouts;
  auto& layout = layouts[trainer_rank];
  if (layout == nullptr) {
    TensorSpec tensor{.name = TensorName(trainer_rank),
                      .dtype = DType::kU64,
                      .shape = {kSlices * kWords},
                      .cuts = {{.dim = 0, .at = {}}}};
    for (uint32_t s = 1; s < kSlices; ++s) tensor.cuts[0].at.push_back(s * kWords);
    auto made = RankLayout::Create({Shard::Whole(tensor)});
    DWS_CHECK(made.ok());
    layout = std::make_shared<const RankLayout>(*std::move(made));
  }
  return layout;
}

Delta Diff(const VersionAt& target, uint32_t trainer_rank, WeightVersion base,
           const RankWeights& before, const RankWeights& after) {
  Delta delta{.manifest = {.stream = target.stream,
                           .trainer_rank = TrainerRank(trainer_rank),
                           .version = target.version,
                           .base_version = base,
                           .state_token = StateToken(DigestsOf(after))}};
  for (uint32_t s = 0; s < kSlices; ++s) {
    if (before[s] == after[s]) continue;
    for (uint32_t w = 0; w < kWords; ++w) delta.steps[s][w] = after[s][w] - before[s][w];
    delta.manifest.slices.push_back(
        {.slice = RankSlice(s), .before = DigestOf(s, before[s]), .after = DigestOf(s, after[s])});
  }
  return delta;
}

Delta Squash(const std::vector<const Delta*>& chain) {
  Delta sum = *chain.back();
  sum.manifest.base_version = chain.front()->manifest.base_version;
  sum.manifest.slices.clear();
  sum.steps = {};
  std::array<std::optional<SliceDelta>, kSlices> touched;
  for (const Delta* delta : chain) {
    for (const SliceDelta& change : delta->manifest.slices) {
      const uint32_t s = change.slice.value();
      if (!touched[s].has_value()) touched[s] = change;
      touched[s]->after = change.after;
      for (uint32_t w = 0; w < kWords; ++w) sum.steps[s][w] += delta->steps[s][w];
    }
  }
  for (const auto& change : touched) {
    if (change.has_value()) sum.manifest.slices.push_back(*change);
  }
  return sum;
}

std::vector<std::byte> ObjectOf(const Delta& delta, const RankWeights& after) {
  samples::State old_state;
  samples::State new_state;
  for (uint32_t s = 0; s < kSlices; ++s) {
    Slice before = after[s];
    Undo(delta, s, before);
    old_state.push_back(BytesOf(before));
    new_state.push_back(BytesOf(after[s]));
  }
  const RankLayout& layout = *LayoutOf(delta.manifest.trainer_rank.value());
  const samples::Encoding encoding = samples::EncodeState(layout, old_state, new_state, {});
  DeltaManifest identity = samples::Identity(layout, encoding, delta.manifest.base_version.value());
  identity.stream = delta.manifest.stream;
  identity.trainer_rank = delta.manifest.trainer_rank;
  identity.version = delta.manifest.version;
  return samples::SealObject(encoding, std::move(identity));
}

void Undo(const Delta& delta, uint32_t slice, Slice& words) {
  for (uint32_t w = 0; w < kWords; ++w) words[w] -= delta.steps[slice][w];
}

}  // namespace dws::sim
