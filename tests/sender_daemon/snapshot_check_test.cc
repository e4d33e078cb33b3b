#include "sender_daemon/capture/snapshot_check.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "sender_daemon/capture/capture.h"
#include "sender_daemon/publish/snapshot_recheck.h"
#include "tests/fakes/eventually.h"
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

TEST_CASE("an undamaged snapshot has the published digests", "[snapshot_check]") {
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

TEST_CASE("one flipped bit is found and its slice is named", "[snapshot_check]") {
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

TEST_CASE("a damaged slice is repaired by the next version that hands it over",
          "[snapshot_check]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  Weights weights = RandomWeights(state->layout(), random);
  PublishAll(state, pool, 1, weights);
  state->snapshot->SliceBytes(RankSlice(1))[3] ^= std::byte{0x10};
  // Undetected so far: the steps start from the flipped bit, and the digest is updated with them.
  const RetainedVersionPtr wrong = PublishAll(state, pool, 2, weights);
  CHECK(wrong->nnz == 1);
  CHECK(wrong->after[1] != DigestsOf(state->layout(), weights)[1]);
  CHECK(CheckAll(*state).size() == 1);
  CHECK(CheckAll(*state).size() == 1);  // a check corrects nothing

  // A version that does not hand over all of the slice cannot correct it.
  {
    Capture other(*state->snapshot, pool, WeightVersion(3));
    REQUIRE(other.Finish().ok());
  }
  CHECK(CheckAll(*state).size() == 1);

  Perturb(weights, 0.01, random);
  const RetainedVersionPtr mended = PublishAll(state, pool, 4, weights);
  CHECK(mended->after == DigestsOf(state->layout(), weights));
  CHECK(CheckAll(*state).empty());
  // Receivers know the earlier digest: they detect the mismatch, and fetch the slice in full.
  CHECK(mended->manifest.base_version == WeightVersion(3));
  Perturb(weights, 0.01, random);
  CHECK(PublishAll(state, pool, 5, weights)->after == DigestsOf(state->layout(), weights));
}

TEST_CASE("a slice that a receiver refused is checked and counted only if it is damaged",
          "[snapshot_check]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(1);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  Weights weights = RandomWeights(state->layout(), random);
  PublishAll(state, pool, 1, weights);
  state->snapshot->SliceBytes(RankSlice(1))[3] ^= std::byte{0x10};
  std::atomic<int> damaged{0};
  SnapshotRecheck recheck([&damaged] { ++damaged; });
  recheck.Ask(state, {RankSlice(0), RankSlice(1), RankSlice(1), RankSlice(1'000'000)});
  REQUIRE(Eventually([&damaged] { return damaged.load() == 1; }));
  Perturb(weights, 0.01, random);
  CHECK(PublishAll(state, pool, 2, weights)->after == DigestsOf(state->layout(), weights));
  recheck.Stop();
  recheck.Ask(state, {RankSlice(0)});
  CHECK(damaged.load() == 1);
}

TEST_CASE("without a version there is nothing to compare", "[snapshot_check]") {
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  SnapshotCheck check(state->snapshot);
  CHECK(check.Next(kTimeout).status().code() == absl::StatusCode::kFailedPrecondition);
}

// Slices take several reads, each of which may see another version.
TEST_CASE("versions that are captured during a check cause no false alarm", "[snapshot_check]") {
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
