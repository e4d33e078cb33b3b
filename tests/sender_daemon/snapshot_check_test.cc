#include "sender_daemon/snapshot_check.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};
constexpr std::chrono::seconds kTimeout{20};

std::vector<SliceDifference> CheckAll(const RankState& state) {
  SnapshotCheck check(state.snapshot);
  std::vector<SliceDifference> differences;
  while (!check.done()) {
    const auto difference = check.Next(kTimeout);
    REQUIRE(difference.ok());
    if (difference->has_value()) differences.push_back(**difference);
  }
  CHECK(check.done_bytes() == state.layout().size_bytes());
  return differences;
}

TEST_CASE("a snapshot as it was captured has the digests that are published", "[snapshot_check]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  Weights weights = RandomWeights(state->layout(), random);
  for (uint64_t version = 1; version <= 3; ++version) {
    PublishAll(state, pool, version, weights);
    CHECK(CheckAll(*state).empty());
    Perturb(weights, 0.01, random);
  }
}

TEST_CASE("one flipped bit is found, in its slice", "[snapshot_check]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  const RetainedVersionPtr published =
      PublishAll(state, pool, 4, RandomWeights(state->layout(), random));
  const MutableByteSpan bytes = state->snapshot->SliceBytes(RankSlice(1));
  bytes[random() % bytes.size()] ^= std::byte{0x10};
  const std::vector<SliceDifference> differences = CheckAll(*state);
  REQUIRE(differences.size() == 1);
  CHECK(differences[0].slice == RankSlice(1));
  CHECK(differences[0].version == WeightVersion(4));
  CHECK(differences[0].expected == published->after[1]);
  CHECK(differences[0].found == DigestsOf(state->layout(), SnapshotWeights(*state))[1]);
}

TEST_CASE("without a version there is nothing to compare", "[snapshot_check]") {
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  SnapshotCheck check(state->snapshot);
  CHECK(check.Next(kTimeout).status().code() == absl::StatusCode::kFailedPrecondition);
}

// Slices of several reads, each of which may see another version.
TEST_CASE("versions that are captured meanwhile raise no false alarm", "[snapshot_check]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankLayout layout =
      MakeLayout({{.tensor = {.name = "large", .dtype = DType::kF32, .shape = {10'000'000}}}});
  const RankStatePtr state = MakeState(layout, kNoLimits);
  Weights weights = RandomWeights(layout, random);
  CaptureAll(*state, pool, 1, weights);
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    for (uint64_t version = 2; !stop; ++version) {
      weights[0][version % weights[0].size()] ^= std::byte{1};
      CaptureAll(*state, pool, version, weights);
    }
  });
  for (int pass = 0; pass < 5; ++pass) CHECK(CheckAll(*state).empty());
  stop = true;
  trainer.join();
}

}  // namespace
}  // namespace dws
