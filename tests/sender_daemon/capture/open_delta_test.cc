// The frames that are made while a delta is captured are those of the object that is sealed.
#include "sender_daemon/capture/open_delta.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>

#include "common/delta/objects/object.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};

// One trainer's versions, captured with and without frames on the way.
struct Twins {
  explicit Twins(RankLayout of = MixedLayout(), size_t threads = 0)
      : layout(std::move(of)), pool(threads) {
    for (const RankStatePtr& state : {early, plain}) PublishAll(state, pool, 1, weights);
  }

  std::unique_ptr<Capture> Begin(uint64_t version, DeltaProfile profile) {
    return std::make_unique<Capture>(*early->snapshot, pool, WeightVersion(version), profile,
                                     FullCause::kNone, [this] { ++told; });
  }
  // All new values, in two slices.
  void Randomise() {
    for (const size_t slice : {1, 2}) {
      for (std::byte& byte : weights[slice]) byte = static_cast<std::byte>(random());
    }
  }
  std::shared_ptr<OpenDelta> open() const { return early->snapshot->in_flight().open_delta(); }

  std::mt19937_64 random{Catch::rngSeed()};
  const RankLayout layout;
  ThreadPool pool;
  const RankStatePtr early = MakeState(layout, kNoLimits);
  const RankStatePtr plain = MakeState(layout, kNoLimits);
  Weights weights = ManyMagnitudes(layout, random);
  std::atomic<int> told{0};
};

// The slices that have frames, in the order in which they got them.
std::vector<FramedSlice> Held(const OpenDelta& delta) {
  std::vector<FramedSlice> held;
  while (auto slice = delta.At(held.size())) held.push_back(*std::move(slice));
  return held;
}

// Checks that `sealed` has the frames that `object` has for its slice.
void CheckFrames(ByteSpan object, const RankLayout& layout, const SealedSlice& sealed) {
  const ObjectHeader header = *ParseObjectHeader(object);
  const DeltaManifest manifest = *ParseObjectManifest(object, layout);
  const auto found = std::ranges::find(manifest.slices, sealed.delta.slice, &SliceDelta::slice);
  REQUIRE(found != manifest.slices.end());
  CHECK(found->nnz == sealed.delta.nnz);
  CHECK(found->classes == sealed.delta.classes);
  REQUIRE(found->frames.size() == sealed.delta.frames.size());
  for (size_t f = 0; f < found->frames.size(); ++f) {
    FrameEntry entry = sealed.delta.frames[f];
    const ByteSpan frame = ByteSpan(sealed.bytes).subspan(entry.offset, entry.size_bytes);
    CHECK(std::ranges::equal(frame, FrameBytes(object, header, found->frames[f])));
    entry.offset = found->frames[f].offset;
    CHECK(entry == found->frames[f]);
  }
}

TEST_CASE("the frames of slices that are captured whole are those of the object", "[open_delta]") {
  const DeltaProfile profile =
      GENERATE(DeltaProfile::kFast, DeltaProfile::kWan, DeltaProfile::kDirect);
  const size_t threads = GENERATE(0, 3);
  Twins twins(MixedLayout(), threads);
  size_t others = 0;
  for (uint64_t version = 2; version <= 6; ++version) {
    Update(twins.layout, twins.weights, twins.random);
    if (version % 2 == 0) Perturb(twins.weights[3], 0.01, twins.random);
    // Dense blocks.
    if (version == 5) twins.Randomise();
    WeightsSource source(twins.layout, twins.weights);
    std::vector<BlockRef> refs = AllBlocks(twins.layout);
    std::shuffle(refs.begin(), refs.end(), twins.random);
    // One that is never captured whole, and some versions in which that has changed.
    const BlockRef missing{.slice = RankSlice(3), .block = 1};
    std::erase_if(refs, [&](const BlockRef& ref) {
      return ref.slice == missing.slice && ref.block == missing.block;
    });
    const std::unique_ptr<Capture> early = twins.Begin(version, profile);
    Capture plain(*twins.plain->snapshot, twins.pool, WeightVersion(version), profile);
    const auto half = std::span(refs).first(refs.size() / 2);
    for (const auto part : {half, std::span(refs).subspan(half.size())}) {
      REQUIRE(early->Blocks(part, source).ok());
      REQUIRE(plain.Blocks(part, source).ok());
    }
    const std::shared_ptr<OpenDelta> open = twins.open();
    REQUIRE(open != nullptr);
    CHECK(open->version() == WeightVersion(version));
    CHECK(open->base() == WeightVersion(version - 1));
    CHECK(open->profile() == profile);
    const std::vector<FramedSlice> held = Held(*open);
    CapturedVersion captured = early->Finish().value();
    CapturedVersion expected = plain.Finish().value();
    CHECK(captured.open_delta == open);
    captured.DropFramed(twins.layout);
    CHECK(captured.blocks[0].payload.empty());
    const RetainedVersionPtr sealed = Seal({.state = twins.early, .captured = std::move(captured)});
    const RetainedVersionPtr twin = Seal({.state = twins.plain, .captured = std::move(expected)});
    CHECK(sealed->object == twin->object);
    CHECK(sealed->other_object == twin->other_object);
    CHECK(sealed->payload_bytes == twin->payload_bytes);
    CHECK(sealed->split_payload_bytes == twin->split_payload_bytes);
    CHECK(sealed->after == twin->after);

    const auto changed = std::ranges::count_if(
        sealed->manifest.slices,
        [&](const SliceDelta& slice) { return slice.slice != missing.slice; });
    CHECK(changed >= 3);
    CHECK(static_cast<ptrdiff_t>(held.size()) == changed);
    for (const FramedSlice& slice : held) {
      CHECK(slice.slice != missing.slice);
      CheckFrames(sealed->object, twins.layout, *slice.Of(false));
      CheckFrames(sealed->object_of(profile), twins.layout, *slice.Of(true));
      others += slice.other != nullptr ? 1 : 0;
    }
    // Until it is published sealing, and readers, have it once.
    CHECK(open->stage() == OpenDelta::Stage::kOpen);
    CHECK(Held(*open).size() == held.size());
    open->Publish();
    CHECK(Held(*open).empty());
  }
  CHECK((others > 0) == (profile != DeltaProfile::kFast));
  CHECK(twins.told >= 1);
}

TEST_CASE("a slice whose digest is mended is not shown before", "[open_delta]") {
  Twins twins;
  Update(twins.layout, twins.weights, twins.random);
  WeightsSource source(twins.layout, twins.weights);
  for (const RankStatePtr& state : {twins.early, twins.plain}) {
    state->snapshot->SetDistrust(RankSlice(2), true);
  }
  const std::unique_ptr<Capture> capture = twins.Begin(2, DeltaProfile::kFast);
  REQUIRE(capture->Blocks(AllBlocks(twins.layout), source).ok());
  const std::vector<FramedSlice> held = Held(*twins.open());
  CHECK(held.size() == 2);
  CHECK(std::ranges::find(held, RankSlice(2), &FramedSlice::slice) == held.end());
  CapturedVersion captured = capture->Finish().value();
  CHECK(captured.mended == std::vector<RankSlice>{RankSlice(2)});
  captured.DropFramed(twins.layout);
  CHECK(Seal({.state = twins.early, .captured = std::move(captured)})->object ==
        PublishAll(twins.plain, twins.pool, 2, twins.weights)->object);
}

TEST_CASE("frames of a capture that is undone are let go of", "[open_delta]") {
  const DeltaProfile profile = GENERATE(DeltaProfile::kWan, DeltaProfile::kDirect);
  Twins twins;
  // So that there are class tables.
  Update(twins.layout, twins.weights, twins.random);
  for (const RankStatePtr& state : {twins.early, twins.plain}) {
    PublishAll(state, twins.pool, 2, twins.weights, DeltaProfile::kWan);
  }
  const Weights before = twins.weights;
  Update(twins.layout, twins.weights, twins.random);
  twins.Randomise();
  WeightsSource source(twins.layout, twins.weights);
  std::shared_ptr<OpenDelta> open;
  {
    const std::unique_ptr<Capture> capture = twins.Begin(3, profile);
    REQUIRE(capture->Blocks(AllBlocks(twins.layout), source).ok());
    open = twins.open();
    CHECK(open->fetchable());
    CHECK(std::ranges::any_of(Held(*open),
                              [](const FramedSlice& slice) { return slice.other != nullptr; }));
  }
  CHECK(open->stage() == OpenDelta::Stage::kGivenUp);
  CHECK_FALSE(open->fetchable());
  CHECK(Held(*open).empty());
  CHECK(SnapshotWeights(*twins.early) == before);
  CHECK(PublishAll(twins.early, twins.pool, 4, twins.weights, profile)->object ==
        PublishAll(twins.plain, twins.pool, 4, twins.weights, profile)->object);
}

TEST_CASE("a delta is worth a fetch from a number of bytes on, which is said once",
          "[open_delta]") {
  Twins twins;
  const auto capture_all = [&](uint64_t version) {
    const std::unique_ptr<Capture> capture = twins.Begin(version, DeltaProfile::kFast);
    WeightsSource source(twins.layout, twins.weights);
    REQUIRE(capture->Blocks(AllBlocks(twins.layout), source).ok());
    return capture->Finish().value();
  };
  Perturb(twins.weights, 0.001, twins.random);
  capture_all(2);
  CHECK_FALSE(Held(*twins.open()).empty());
  CHECK_FALSE(twins.open()->fetchable());
  CHECK(twins.told == 0);
  for (uint64_t version = 3; version <= 4; ++version) {
    Update(twins.layout, twins.weights, twins.random);
    twins.Randomise();
    capture_all(version);
    CHECK(twins.open()->fetchable());
    CHECK(twins.told == static_cast<int>(version) - 2);
    twins.open()->Publish();
    CHECK_FALSE(twins.open()->fetchable());
  }
}

TEST_CASE("full versions and captures that nobody is told of are not shown", "[open_delta]") {
  Twins twins;
  Perturb(twins.weights, 0.01, twins.random);
  WeightsSource source(twins.layout, twins.weights);
  Capture full(*twins.early->snapshot, twins.pool, WeightVersion(2), DeltaProfile::kFast,
               FullCause::kAsked, [&twins] { ++twins.told; });
  REQUIRE(full.Blocks(AllBlocks(twins.layout), source).ok());
  CHECK(full.Finish().value().open_delta == nullptr);
  CHECK(CaptureAll(*twins.plain, twins.pool, 2, twins.weights).open_delta == nullptr);
  CHECK(twins.open() == nullptr);
  CHECK(twins.plain->snapshot->in_flight().open_delta() == nullptr);
  CHECK(twins.told == 0);
}

}  // namespace
}  // namespace dws
