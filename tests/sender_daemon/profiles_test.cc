// Profiles wan and direct: the second encoding of a version leads to the same weights. It is
// smaller where updates have one size, or needs no decoding where everything changed. It is served
// to receivers that ask for it.
#include <catch2/catch.hpp>

#include "sender_daemon/publish/delta_log.h"
#include "tests/sender_daemon/object_apply.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};
constexpr DeltaProfile kWan = DeltaProfile::kWan;
constexpr DeltaProfile kDirect = DeltaProfile::kDirect;

// A rank with nothing published, and its trainer's weights.
struct PublishingRank {
  explicit PublishingRank(size_t threads = 1) : pool(threads) {}

  std::mt19937_64 random{Catch::rngSeed()};
  ThreadPool pool;
  const RankLayout layout = MixedLayout();
  const RankStatePtr state = MakeState(layout, kNoLimits);
  Weights weights = ManyMagnitudes(layout, random);
};

TEST_CASE("a class-split object leads to the same weights and is smaller", "[capture]") {
  PublishingRank rank;
  auto& [random, pool, layout, state, weights] = rank;
  CHECK(PublishAll(state, pool, 1, weights, kWan)->other_object.empty());
  for (uint64_t version = 2; version <= 12; ++version) {
    Weights replica = weights;
    Weights other = weights;
    Update(layout, weights, random);
    const RetainedVersionPtr sealed = PublishAll(state, pool, version, weights, kWan);
    ApplyObject(layout, sealed->object, replica);
    CHECK(replica == weights);
    CHECK(sealed->after == DigestsOf(layout, weights));
    if (version == 2) {  // the slices had no class tables yet
      CHECK(sealed->other_object.empty());
      continue;
    }
    ApplyObject(layout, sealed->other_object, other);
    CHECK(other == weights);
    CHECK(sealed->other_object.size() * 10 < sealed->object.size() * 9);
    CHECK(sealed->split_payload_bytes > 0);
    CHECK(sealed->split_payload_bytes < sealed->other_object.size());
    CHECK(sealed->payload_bytes[static_cast<size_t>(BlockMode::kClassSplit)] == 0);
  }
}

TEST_CASE("class-split objects do not depend on the number of threads", "[capture]") {
  const auto seed = Catch::rngSeed();
  const RankLayout layout = MixedLayout();
  std::vector<std::vector<std::byte>> objects;
  for (const size_t threads : {0, 3}) {
    std::mt19937_64 random(seed);
    ThreadPool pool(threads);
    const RankStatePtr state = MakeState(layout, kNoLimits);
    Weights weights = ManyMagnitudes(layout, random);
    for (uint64_t version = 1; version <= 5; ++version) {
      objects.push_back(PublishAll(state, pool, version, weights, kWan)->other_object);
      Update(layout, weights, random);
    }
  }
  REQUIRE(objects.size() == 10);
  REQUIRE_FALSE(objects[4].empty());
  for (size_t i = 0; i < 5; ++i) CHECK(objects[i] == objects[i + 5]);
}

TEST_CASE("a version is undone, squashed and retained with class-split blocks as without",
          "[capture]") {
  PublishingRank rank;
  auto& [random, pool, layout, state, weights] = rank;
  PublishAll(state, pool, 1, weights, kWan);
  Update(layout, weights, random);
  PublishAll(state, pool, 2, weights, kWan);
  const Weights second = weights;
  Update(layout, weights, random);
  {
    Capture capture(*state->snapshot, pool, WeightVersion(3), kWan);
    WeightsSource source(layout, weights);
    REQUIRE(capture.Blocks(AllBlocks(layout), source).ok());
  }
  CHECK(SnapshotWeights(*state) == second);
  const uint64_t before = state->log->retained_bytes();
  const RetainedVersionPtr third = PublishAll(state, pool, 3, weights, kWan);
  CHECK(state->log->retained_bytes() - before == third->object.size() + third->other_object.size());
  Update(layout, weights, random);
  PublishAll(state, pool, 4, weights, kWan);
  const auto squash = state->log->Object(WeightVersion(2), WeightVersion(4), kWan);
  REQUIRE(squash.ok());
  Weights replica = second;
  ApplyObject(layout, **squash, replica);
  CHECK(replica == weights);
}

TEST_CASE(
    "a request for class-split deltas is served if they are made and makes later versions have "
    "them",
    "[capture]") {
  PublishingRank rank;
  auto& [random, pool, layout, state, weights] = rank;
  const auto publish = [&](uint64_t version, DeltaProfile profile) {
    Update(layout, weights, random);
    return PublishAll(state, pool, version, weights, profile);
  };
  const auto get = [&](uint64_t version, DeltaProfile profile) {
    return state->log->Object(WeightVersion(version - 1), WeightVersion(version), profile);
  };
  publish(1, DeltaProfile::kFast);
  const RetainedVersionPtr second = publish(2, DeltaProfile::kFast);
  CHECK(state->log->Asked() == DeltaProfile::kFast);
  CHECK((*get(2, kWan)).get() == &second->object);  // this version has no other object
  CHECK(state->log->Asked() == kWan);
  publish(3, kWan);
  const RetainedVersionPtr fourth = publish(4, kWan);
  CHECK((*get(4, kWan)).get() == &fourth->other_object);
  CHECK((*get(4, DeltaProfile::kFast)).get() == &fourth->object);
  for (uint64_t version = 5; version <= 4 + limits::kWanAskedVersions; ++version) {
    publish(version, DeltaProfile::kFast);
    CHECK(state->log->Asked() == kWan);
  }
  publish(5 + limits::kWanAskedVersions, DeltaProfile::kFast);
  CHECK(state->log->Asked() == DeltaProfile::kFast);
}

TEST_CASE("a link that is faster than dense decoding gets raw blocks instead of dense blocks",
          "[capture]") {
  PublishingRank rank;
  auto& [random, pool, layout, state, weights] = rank;
  PublishAll(state, pool, 1, weights, kDirect);
  const Weights first = weights;
  Update(layout, weights, random);  // sparse, except for one tensor with all new values
  for (std::byte& byte : weights[1]) byte = static_cast<std::byte>(random());
  const RetainedVersionPtr second = PublishAll(state, pool, 2, weights, kDirect);

  const auto modes = [&](ByteSpan object) {
    std::array<uint64_t, kBlockModes> blocks{};
    const ObjectHeader header = *ParseObjectHeader(object);
    const DeltaManifest manifest = *ParseObjectManifest(object, layout);
    for (const SliceDelta& slice : manifest.slices) {
      for (const FrameEntry& entry : slice.frames) {
        const auto views = *ParseFrame(FrameBytes(object, header, entry), entry);
        for (const EncodedBlockView& view : views) ++blocks[static_cast<size_t>(view.mode)];
      }
    }
    return blocks;
  };
  constexpr auto kUlp = static_cast<size_t>(BlockMode::kDenseUlp);
  constexpr auto kRaw = static_cast<size_t>(BlockMode::kDenseRaw);
  constexpr auto kRice = static_cast<size_t>(BlockMode::kSplitRice);
  const auto fast = modes(second->object);
  const auto direct = modes(second->other_object);
  CHECK(fast[kUlp] > 0);
  CHECK(fast[kRaw] == 0);  // retained blocks are steps, so that they can be undone and squashed
  CHECK(direct[kUlp] == 0);
  CHECK(direct[kRaw] == fast[kUlp]);
  CHECK(direct[kRice] == fast[kRice]);
  for (const DeltaProfile profile : {DeltaProfile::kFast, kDirect, kWan}) {
    const auto object = state->log->Object(WeightVersion(1), WeightVersion(2), profile);
    REQUIRE(object.ok());
    CHECK(((*object).get() == &second->other_object) == (profile == kDirect));
    Weights replica = first;
    ApplyObject(layout, **object, replica);
    CHECK(replica == weights);
  }
  CHECK(state->log->Asked() == kWan);  // slow links have priority over fast ones

  // Sparse changes are the same on every link.
  Update(layout, weights, random);
  CHECK(PublishAll(state, pool, 3, weights, kDirect)->other_object.empty());
}

TEST_CASE("a request for raw dense blocks is remembered as long as one for class-split blocks",
          "[capture]") {
  PublishingRank rank(0);
  auto& [random, pool, layout, state, weights] = rank;
  PublishAll(state, pool, 1, weights);
  Update(layout, weights, random);
  PublishAll(state, pool, 2, weights);
  REQUIRE(state->log->Object(WeightVersion(1), WeightVersion(2), kDirect).ok());
  for (uint64_t version = 3; version <= 2 + limits::kWanAskedVersions; ++version) {
    CHECK(state->log->Asked() == kDirect);
    PublishAll(state, pool, version, weights);
  }
  CHECK(state->log->Asked() == kDirect);
  PublishAll(state, pool, 3 + limits::kWanAskedVersions, weights);
  CHECK(state->log->Asked() == DeltaProfile::kFast);
}

TEST_CASE("links are all fast if only direct was asked for lately", "[capture]") {
  PublishingRank rank(0);
  auto& [random, pool, layout, state, weights] = rank;
  uint64_t version = 0;
  const auto publish = [&] { PublishAll(state, pool, version += 10, weights); };  // with gaps
  const auto ask = [&](DeltaProfile profile) {
    const WeightVersion newest(version);
    REQUIRE(state->log->Object(WeightVersion(version - 10), newest, profile).ok());
  };
  publish();
  publish();
  CHECK_FALSE(state->log->AllDirect());  // nobody has asked
  ask(DeltaProfile::kFast);
  publish();
  ask(kDirect);
  CHECK_FALSE(state->log->AllDirect());  // who asked for fast may not have come to this one
  publish();
  ask(kDirect);
  CHECK(state->log->AllDirect());
  SECTION("another receiver's link is slower") {
    ask(GENERATE(DeltaProfile::kFast, kWan));
    CHECK_FALSE(state->log->AllDirect());
  }
  SECTION("full tensors came slowly") {
    state->log->Note(DeltaProfile::kFast);
    CHECK_FALSE(state->log->AllDirect());
  }
  SECTION("nobody asks any more") {
    for (uint64_t i = 0; i < limits::kWanAskedVersions; ++i) {
      publish();
      CHECK(state->log->AllDirect());
    }
    publish();
    CHECK_FALSE(state->log->AllDirect());
  }
}

}  // namespace
}  // namespace dws
