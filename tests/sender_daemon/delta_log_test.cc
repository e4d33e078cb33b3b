#include "sender_daemon/publish/delta_log.h"

#include <catch2/catch.hpp>

#include "sender_daemon/publish/full_reader.h"
#include "tests/sender_daemon/object_apply.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr uint64_t kManyBytes = uint64_t{1} << 30;
constexpr std::chrono::seconds kTimeout{10};

// A stream of `count` versions; states[v] are the weights of version v + 1.
std::vector<Weights> PublishVersions(const RankStatePtr& state, ThreadPool& pool, size_t count,
                                     double density, std::mt19937_64& random) {
  std::vector<Weights> states = {RandomWeights(state->layout(), random)};
  PublishAll(state, pool, 1, states.back());
  while (states.size() < count) {
    Weights next = states.back();
    Perturb(next, density, random);
    states.push_back(next);
    PublishAll(state, pool, states.size(), next);
  }
  return states;
}

Result<Weights> ReadFull(const RankStatePtr& state, uint64_t version) {
  Weights weights;
  for (const auto& slice : state->layout().slices()) weights.emplace_back(slice.size_bytes());
  FullReader reader(state->snapshot, state->log, WeightVersion(version),
                    WholeSlices(state->layout()));
  while (true) {
    DWS_ASSIGN_OR_RETURN(const auto frames, reader.Next(kTimeout));
    if (frames.empty()) return weights;
    for (const FullFrame& frame : frames) {
      ApplyFrame(state->layout(), frame.slice, frame.bytes, frame.entry, weights);
    }
  }
}

TEST_CASE("a squashed delta equals its versions applied in order", "[delta_log]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankStatePtr state =
      MakeState(SmallLayout(), {.bytes_max = kManyBytes, .versions_max = 100});
  const auto states = PublishVersions(state, pool, 6, GENERATE(0.002, 0.2, 2.0), random);
  for (size_t base = 1; base < states.size(); ++base) {
    for (size_t target = base + 1; target <= states.size(); ++target) {
      const auto object = state->log->Object(WeightVersion(base), WeightVersion(target));
      REQUIRE(object.ok());
      Weights replica = states[base - 1];
      ApplyObject(state->layout(), **object, replica);
      CHECK(replica == states[target - 1]);
      const auto manifest = ParseObjectManifest(**object, state->layout());
      CHECK(manifest->base_version == WeightVersion(base));
      CHECK(manifest->version == WeightVersion(target));
      const auto before = DigestsOf(state->layout(), states[base - 1]);
      const auto after = DigestsOf(state->layout(), states[target - 1]);
      for (const SliceDelta& slice : manifest->slices) {
        CHECK(slice.before == before[slice.slice.value()]);
        CHECK(slice.after == after[slice.slice.value()]);
      }
      CHECK(manifest->state_token == StateToken(after));
    }
  }
}

TEST_CASE("changes that cancel over several versions are not in the squashed delta",
          "[delta_log]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr state =
      MakeState(SmallLayout(), {.bytes_max = kManyBytes, .versions_max = 100});
  const auto states = PublishVersions(state, pool, 2, 0.01, random);
  PublishAll(state, pool, 3, states[0]);
  const auto object = state->log->Object(WeightVersion(1), WeightVersion(3));
  REQUIRE(object.ok());
  const auto manifest = ParseObjectManifest(**object, state->layout());
  REQUIRE(manifest.ok());
  for (const SliceDelta& slice : manifest->slices) CHECK(slice.nnz == 0);
}

TEST_CASE("a log over its limits drops the oldest versions and reports what it retains",
          "[delta_log]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr by_count =
      MakeState(SmallLayout(), {.bytes_max = kManyBytes, .versions_max = 3});
  CHECK(by_count->log->First() == nullptr);
  const auto states = PublishVersions(by_count, pool, 3, 0.01, random);
  REQUIRE(by_count->log->First() != nullptr);
  CHECK(by_count->log->First()->version == WeightVersion(1));
  for (uint64_t version = 4; version <= 6; ++version) {
    PublishAll(by_count, pool, version, states[version - 4]);
  }
  CHECK(by_count->log->First() == nullptr);
  CHECK(by_count->log->All().size() == 3);
  CHECK(by_count->log->Object(WeightVersion(3), WeightVersion(6)).ok());
  const auto retired = by_count->log->Object(WeightVersion(2), WeightVersion(6));
  CHECK(retired.status().code() == absl::StatusCode::kAborted);
  CHECK(std::string(Message(retired.status())).find("retains 4 to 6") != std::string::npos);

  const RankStatePtr by_bytes = MakeState(SmallLayout(), {.bytes_max = 1, .versions_max = 100});
  PublishVersions(by_bytes, pool, 3, 0.01, random);
  CHECK(by_bytes->log->All().size() == 1);  // the newest always stays
}

TEST_CASE("a delta object stays valid after the log drops it", "[delta_log]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr state = MakeState(SmallLayout(), {.bytes_max = kManyBytes, .versions_max = 1});
  auto states = PublishVersions(state, pool, 2, 0.01, random);
  const auto held = state->log->Object(WeightVersion(1), WeightVersion(2));
  REQUIRE(held.ok());
  Weights newer = states[1];
  Perturb(newer, 0.01, random);
  PublishAll(state, pool, 3, newer);
  CHECK_FALSE(state->log->Object(WeightVersion(1), WeightVersion(2)).ok());
  Weights replica = states[0];
  ApplyObject(state->layout(), **held, replica);
  CHECK(replica == states[1]);
}

TEST_CASE("full tensors of an older version are exact although the snapshot is newer",
          "[full_reader]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankStatePtr state =
      MakeState(SmallLayout(), {.bytes_max = kManyBytes, .versions_max = 100});
  const auto states = PublishVersions(state, pool, 5, GENERATE(0.01, 2.0), random);
  for (size_t version = 1; version <= states.size(); ++version) {
    const auto full = ReadFull(state, version);
    REQUIRE(full.ok());
    CHECK(*full == states[version - 1]);
  }
}

TEST_CASE("full tensors of a version that is no longer in the log are refused", "[full_reader]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr state = MakeState(SmallLayout(), {.bytes_max = kManyBytes, .versions_max = 2});
  PublishVersions(state, pool, 5, 0.01, random);
  CHECK(ReadFull(state, 4).ok());
  CHECK(ReadFull(state, 2).status().code() == absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace dws
