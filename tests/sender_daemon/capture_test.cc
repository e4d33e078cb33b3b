#include "sender_daemon/capture/capture.h"

#include <catch2/catch.hpp>

#include "tests/sender_daemon/object_apply.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};

TEST_CASE("a captured version leads exactly from the snapshot to the trainer's weights",
          "[capture]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankLayout layout = SmallLayout();
  const RankStatePtr state = MakeState(layout, kNoLimits);
  Weights weights = RandomWeights(layout, random);
  PublishAll(state, pool, 1, weights);
  CHECK(SnapshotWeights(*state) == weights);

  for (const double density : {0.0, 0.001, 0.01, 0.5, 3.0}) {
    const uint64_t version = state->snapshot->version()->value() + 1;
    Weights replica = weights;
    Perturb(weights, density, random);
    const RetainedVersionPtr sealed = PublishAll(state, pool, version, weights);
    ApplyObject(layout, sealed->object, replica);
    CHECK(replica == weights);
    CHECK(SnapshotWeights(*state) == weights);
    CHECK(sealed->after == DigestsOf(layout, weights));
    CHECK(sealed->manifest.state_token == StateToken(sealed->after));
  }
}

TEST_CASE("a version without changes is an object without frames", "[capture]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  const Weights weights = RandomWeights(state->layout(), random);
  PublishAll(state, pool, 1, weights);
  const RetainedVersionPtr sealed = PublishAll(state, pool, 2, weights);
  CHECK(sealed->nnz == 0);
  CHECK(sealed->manifest.slices.empty());
  CHECK(sealed->object.size() < 400);
}

TEST_CASE("a capture that is not finished is undone from its recorded steps", "[capture]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  const Weights first = RandomWeights(state->layout(), random);
  PublishAll(state, pool, 1, first);
  Weights changed = first;
  Perturb(changed, GENERATE(0.01, 2.0), random);
  {
    Capture capture(*state->snapshot, pool, WeightVersion(2));
    WeightsSource source(state->layout(), changed);
    auto refs = AllBlocks(state->layout());
    refs.resize(refs.size() / 2);
    REQUIRE(capture.Blocks(refs, source).ok());
    CHECK(SnapshotWeights(*state) != first);
  }  // the trainer raised in the middle
  CHECK(SnapshotWeights(*state) == first);
  CHECK(state->snapshot->version() == WeightVersion(1));
  CHECK(state->snapshot->digests() == DigestsOf(state->layout(), first));

  // The next version is whole.
  Weights replica = first;
  const RetainedVersionPtr sealed = PublishAll(state, pool, 2, changed);
  ApplyObject(state->layout(), sealed->object, replica);
  CHECK(replica == changed);
}

TEST_CASE("a block that is handed over twice is refused and earlier blocks stay captured",
          "[capture]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  const Weights weights = RandomWeights(state->layout(), random);
  WeightsSource source(state->layout(), weights);
  Capture capture(*state->snapshot, pool, WeightVersion(1));
  const std::vector<BlockRef> all = AllBlocks(state->layout());
  const std::vector<BlockRef> twice = {all[0], all[1], all[0]};
  const Status refused = capture.Blocks(twice, source);
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(Message(refused)).find("'a'") != std::string::npos);
  CHECK(capture.Blocks(all, source).ok());  // nothing of the refused call was captured
  CHECK(capture.Blocks(std::vector<BlockRef>{all[0]}, source).code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(capture.Finish().ok());
}

TEST_CASE("only the first version must hand over every tensor", "[capture]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  Weights weights = RandomWeights(state->layout(), random);
  WeightsSource source(state->layout(), weights);
  const std::vector<BlockRef> all = AllBlocks(state->layout());
  {
    Capture capture(*state->snapshot, pool, WeightVersion(1));
    REQUIRE(capture.Blocks(std::span(all).first(all.size() - 1), source).ok());
    const auto incomplete = capture.Finish();
    CHECK(incomplete.status().code() == absl::StatusCode::kFailedPrecondition);
    CHECK(std::string(Message(incomplete.status())).find("'b'") != std::string::npos);
    REQUIRE(capture.Blocks(std::span(all).last(1), source).ok());
    CHECK(capture.Finish().ok());
  }
  weights[0][0] ^= std::byte{1};
  Capture capture(*state->snapshot, pool, WeightVersion(2));
  REQUIRE(capture.Blocks(std::span(all).first(1), source).ok());
  const auto captured = capture.Finish();
  REQUIRE(captured.ok());
  CHECK(captured->nnz == 1);
  CHECK(SnapshotWeights(*state) == weights);
}

}  // namespace
}  // namespace dws
