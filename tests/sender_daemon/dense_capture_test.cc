// Captures of weights some of which change nearly everywhere: skipping positions because of the
// density watch changes no bit of the result, and hardly the bytes sent.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "sender_daemon/capture/capture.h"
#include "tests/sender_daemon/object_apply.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};

// How often an element of a tensor changes, and by how much.
struct Habit {
  double density = 0;
  uint32_t step_bits = 63;  // low bits that may change
};

struct Model {
  RankLayout layout;
  std::vector<Habit> habits;  // by rank slice
};

// Weights as in quantised checkpoints: codes and scales of every width, some of which change
// everywhere.
Model RandomModel(std::mt19937_64& random) {
  constexpr DType kDTypes[] = {DType::kU8,     DType::kI8,   DType::kF8E4M3, DType::kF8E5M2,
                               DType::kF8E8M0, DType::kBF16, DType::kF16,    DType::kI32,
                               DType::kF32,    DType::kF64};
  constexpr Habit kHabits[] = {{.density = 1},
                               {.density = 0.01},
                               {.density = 0},
                               {.density = 1, .step_bits = 3},
                               {.density = 0.7, .step_bits = 5},
                               {.density = 1, .step_bits = 1}};
  std::vector<Shard> shards;
  std::vector<Habit> habits;
  for (size_t i = 0; i < 12; ++i) {
    const uint64_t elements = 1 + random() % (i == 0 ? 200'000 : 30'000);
    shards.push_back({.tensor = {.name = std::string(1, static_cast<char>('a' + i)),
                                 .dtype = kDTypes[random() % std::size(kDTypes)],
                                 .shape = {elements},
                                 .cuts = {}}});
    habits.push_back(kHabits[i % std::size(kHabits)]);
  }
  return {.layout = MakeLayout(std::move(shards)), .habits = std::move(habits)};
}

void Change(const Model& model, Weights& weights, std::mt19937_64& random) {
  for (uint32_t s = 0; s < model.layout.slice_count(); ++s) {
    const size_t width = ElementBytes(model.layout.slice(RankSlice(s)).dtype);
    const Habit& habit = model.habits[s];
    const auto chance = static_cast<uint64_t>(habit.density * 65'536);
    for (size_t at = 0; at < weights[s].size(); at += width) {
      if (random() % 65'536 >= chance) continue;
      const uint64_t flips = (random() & ((uint64_t{1} << habit.step_bits) - 1)) | 1;
      for (size_t b = 0; b < width; ++b) {
        weights[s][at + b] ^= static_cast<std::byte>(flips >> (8 * b));
      }
    }
  }
}

// The same version from a sender without earlier ones.
RetainedVersionPtr WithoutWatch(const RankLayout& layout, ThreadPool& pool, const Weights& before,
                                const Weights& after) {
  const RankStatePtr state = MakeState(layout, kNoLimits);
  PublishAll(state, pool, 1, before);
  return PublishAll(state, pool, 2, after);
}

uint64_t DenseBytes(const RetainedVersion& version) {
  return version.payload_bytes[static_cast<size_t>(BlockMode::kDenseUlp)];
}

TEST_CASE("captures with and without known dense groups lead to the same bits", "[density]") {
  std::mt19937_64 random(Catch::rngSeed());
  const auto profile = GENERATE(DeltaProfile::kFast, DeltaProfile::kWan, DeltaProfile::kDirect);
  ThreadPool pool(1);
  const Model model = RandomModel(random);
  const RankStatePtr state = MakeState(model.layout, kNoLimits);
  Weights weights = RandomWeights(model.layout, random);
  PublishAll(state, pool, 1, weights, profile);
  const Weights first = weights;
  uint64_t most_groups = 0;
  for (uint64_t version = 2; version <= 24; ++version) {
    Weights replica = weights;
    Weights other_replica = weights;
    Weights plain_replica = weights;
    const Weights before = weights;
    Change(model, weights, random);
    const RetainedVersionPtr sealed = PublishAll(state, pool, version, weights, profile);
    const RetainedVersionPtr plain = WithoutWatch(model.layout, pool, before, weights);
    ApplyObject(model.layout, sealed->object, replica);
    ApplyObject(model.layout, sealed->object_of(profile), other_replica);
    ApplyObject(model.layout, plain->object, plain_replica);
    CHECK(replica == weights);
    CHECK(other_replica == weights);
    CHECK(plain_replica == weights);
    CHECK(SnapshotWeights(*state) == weights);
    CHECK(sealed->after == DigestsOf(model.layout, weights));
    CHECK(sealed->nnz == plain->nnz);
    CHECK(sealed->object.size() * 10 <= plain->object.size() * 13);
    CHECK(DenseBytes(*sealed) >= DenseBytes(*plain));
    most_groups = std::max(most_groups, sealed->density.dense_groups);
  }
  CHECK(most_groups >= 2);
  const auto squash = state->log->Object(WeightVersion(1), WeightVersion(24));
  REQUIRE(squash.ok());
  Weights late = first;
  ApplyObject(model.layout, **squash, late);
  CHECK(late == weights);
  // No block is larger than its weights: a receiver that is behind never fetches more than full
  // tensors.
  CHECK((*squash)->size() < model.layout.size_bytes() + 200 * model.layout.block_count() + 4096);
}

TEST_CASE("versions of dense groups do not depend on the number of threads", "[density]") {
  const auto seed = Catch::rngSeed();
  std::vector<std::vector<std::byte>> objects;
  for (const size_t threads : {0, 3}) {
    std::mt19937_64 random(seed);
    ThreadPool pool(threads);
    const Model model = RandomModel(random);
    const RankStatePtr state = MakeState(model.layout, kNoLimits);
    Weights weights = RandomWeights(model.layout, random);
    for (uint64_t version = 1; version <= 6; ++version) {
      objects.push_back(PublishAll(state, pool, version, weights)->object);
      Change(model, weights, random);
    }
  }
  REQUIRE(objects.size() == 12);
  for (size_t i = 0; i < 6; ++i) CHECK(objects[i] == objects[i + 6]);
}

TEST_CASE(
    "an unfinished capture of dense groups is undone and does not count for the density watch",
    "[density]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  Weights weights = RandomWeights(state->layout(), random);
  for (uint64_t version = 1; version <= 2; ++version) {
    PublishAll(state, pool, version, weights);
    weights = RandomWeights(state->layout(), random);
  }
  const Weights second = SnapshotWeights(*state);
  const auto capture_and_undo = [&] {
    Capture capture(*state->snapshot, pool, WeightVersion(3));
    WeightsSource source(state->layout(), weights);
    REQUIRE(capture.Blocks(AllBlocks(state->layout()), source).ok());
  };
  capture_and_undo();
  CHECK(SnapshotWeights(*state) == second);
  const RetainedVersionPtr third = PublishAll(state, pool, 3, weights);
  CHECK(third->density.turns.size() == 2);  // with the second version in a row, not the third
  const Weights kept = weights;
  weights = RandomWeights(state->layout(), random);
  {
    Capture capture(*state->snapshot, pool, WeightVersion(4));
    WeightsSource source(state->layout(), weights);
    REQUIRE(capture.Blocks(AllBlocks(state->layout()), source).ok());
  }
  CHECK(SnapshotWeights(*state) == kept);
}

}  // namespace
}  // namespace dws
