#include "tests/common/delta/hostile_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/delta/bits/element.h"

namespace dws::samples {
namespace {

RankLayout LayoutOf(std::vector<Shard> shards) {
  std::sort(shards.begin(), shards.end(),
            [](const Shard& a, const Shard& b) { return a.tensor.name < b.tensor.name; });
  Result<RankLayout> layout = RankLayout::Create(std::move(shards));
  DWS_CHECK(layout.ok());
  return *std::move(layout);
}

Shard Tensor(std::string name, DType dtype, std::vector<uint64_t> shape) {
  Shard shard;
  shard.tensor.name = std::move(name);
  shard.tensor.dtype = dtype;
  shard.tensor.shape = std::move(shape);
  return shard;
}

// Moves the elements begin, begin + stride, ... below `end` up by one unit.
Bytes StepUp(DType dtype, const Bytes& before, size_t begin, size_t end, size_t stride) {
  Bytes after = before;
  WithElement(dtype, [&](auto element) {
    using E = decltype(element);
    using Bits = typename E::Bits;
    for (size_t i = begin; i < end; i += stride) {
      std::byte* at = after.data() + i * E::kBytes;
      StoreLe(at, E::FromStep(LoadLe<Bits>(at), Bits{1}));
    }
  });
  return after;
}

// The E4M3 code of a value, by truncation: close to a quantiser, and the same on every machine.
std::byte ToF8(float value) {
  const float magnitude = std::min(std::fabs(value), 448.0F);
  if (magnitude < 0x1p-9F) return std::byte{0};
  const int exponent = std::max(std::ilogb(magnitude), -6);
  const int significand = static_cast<int>(std::ldexp(magnitude, 3 - exponent));  // 0 to 15
  const int code = significand < 8 ? significand : (exponent + 7) * 8 + significand - 8;
  return static_cast<std::byte>(std::min(code, 0x7E) | (std::signbit(value) ? 0x80 : 0));
}

constexpr size_t kTiles = 8;
constexpr size_t kTileSide = 128;
constexpr size_t kSide = kTiles * kTileSide;

State Quantised(const std::vector<float>& weights, const std::vector<float>& scales) {
  State state(2);
  state[0].resize(scales.size() * sizeof(float));
  std::memcpy(state[0].data(), scales.data(), state[0].size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const size_t tile = i / kSide / kTileSide * kTiles + i % kSide / kTileSide;
    state[1].push_back(ToF8(weights[i] / scales[tile]));
  }
  return state;
}

}  // namespace

RankLayout VectorLayout(DType dtype, uint64_t element_count) {
  return LayoutOf({Tensor("w", dtype, {element_count})});
}

std::vector<HostileCase> HostileTensors(Random& random, DType dtype, uint32_t element_count) {
  const RankLayout layout = VectorLayout(dtype, element_count);
  std::vector<HostileCase> cases;
  const auto add = [&](std::string name, const Bytes& before, const Bytes& after) {
    cases.push_back({.name = fmt::format("{} x {}: {}", element_count, ToString(dtype), name),
                     .layout = layout,
                     .before = {before},
                     .after = {after}});
  };
  for (const Hostile& pair : HostilePairs(random, dtype, element_count)) {
    add(pair.name, pair.before, pair.after);
  }
  const Bytes noise = RandomBytes(random, size_t{element_count} * ElementBytes(dtype));
  const size_t middle = element_count / 2;
  add("everything by one unit", noise, StepUp(dtype, noise, 0, element_count, 1));
  add("every other element", noise, StepUp(dtype, noise, 0, element_count, 2));
  add("the odd elements", noise, StepUp(dtype, noise, 1, element_count, 2));
  add("one element", noise, StepUp(dtype, noise, middle, middle + 1, 1));
  add("the first half", noise, StepUp(dtype, noise, 0, middle, 1));
  if (element_count > limits::kBlockElements) {
    const size_t end = limits::kBlockElements;
    add("both sides of a block's end", noise, StepUp(dtype, noise, end - 1, end + 1, 1));
  }
  return cases;
}

HostileCase FlippedScales(Random& random) {
  std::vector<float> weights(kSide * kSide);
  for (float& weight : weights) {
    // The sum of four bytes is bell shaped; most weights are small against their tile's scale.
    const uint64_t bits = random.Next();
    const int sum = static_cast<int>((bits & 0xFF) + (bits >> 8 & 0xFF) + (bits >> 16 & 0xFF) +
                                     (bits >> 24 & 0xFF));
    weight = static_cast<float>(sum - 510) * 0x1p-10F;
  }
  std::vector<float> scales(kTiles * kTiles, 0x1p-9F);
  HostileCase flipped{.name = "FP8 with flipped block scales",
                      .layout = LayoutOf({Tensor("scale_inv", DType::kF32, {kTiles, kTiles}),
                                          Tensor("weight", DType::kF8E4M3, {kSide, kSide})}),
                      .before = Quantised(weights, scales),
                      .after = {}};
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] *= 1.0F + (random.Chance(0.5) ? 0x1p-12F : -0x1p-12F);
  }
  for (size_t tile = 0; tile < scales.size(); tile += 3) scales[tile] *= 2;
  flipped.after = Quantised(weights, scales);
  return flipped;
}

HostileCase OddTensors(Random& random) {
  std::vector<Shard> shards;
  for (const DType dtype : kAllDTypes) {
    for (const uint64_t elements : {0, 1, 2, 3, 5, 7, 9, 65'539}) {
      shards.push_back(Tensor(fmt::format("{}_{}", ToString(dtype), elements), dtype, {elements}));
    }
    shards.push_back(Tensor(fmt::format("{}_scalar", ToString(dtype)), dtype, {}));
    shards.push_back(Tensor(fmt::format("{}_no_rows", ToString(dtype)), dtype, {0, 7}));
  }
  HostileCase odd{.name = "odd sizes of every dtype",
                  .layout = LayoutOf(std::move(shards)),
                  .before = {},
                  .after = {}};
  odd.before = RandomState(odd.layout, random.Next());
  odd.after = RandomState(odd.layout, random.Next());
  return odd;
}

}  // namespace dws::samples
