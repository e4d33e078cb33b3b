// Class-split deltas at the receiver: blocks that are decoded against the engine's own memory,
// which lies in pieces, in copies, and may not be what the sender thinks.
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <vector>

#include "common/delta/squash.h"
#include "receiver_daemon/weights/held_weights.h"
#include "tests/receiver_daemon/staging_case.h"

namespace dws {
namespace {

constexpr ClassTable kTable{
    .thresholds = {60, 120, 200}, .threshold_count = 3, .hot_below = 90, .hot_scale = 95};

// A trainer of random weights with versions 1 and 2, class-split.
struct SplitCase {
  explicit SplitCase(double density, int copies = 1)
      : trainer(Ranks()), memory(AnyMemory()), engine(trainer.layouts(), copies, 1, memory) {
    trainer.classes = kTable;
    trainer.Publish();
    trainer.Publish(density);
    engine.Load(trainer, 1);
    live = ReadLive(*engine.weights, pool);
  }
  StagedDelta StageRank(uint32_t rank, uint64_t bytes_max = kPlenty) {
    return Stage(engine, rank, MakeDelta(trainer, rank, 1, 2), live, pool, bytes_max);
  }
  // Flips a low bit of an element that version 2 leaves alone, in one copy of a slice of rank 0.
  void FlipUnchanged(uint32_t slice, size_t copy) {
    SliceBytes bytes = engine.Read(0, slice, copy);
    size_t at = bytes.size() / 4 * 2 + 1;  // a high byte: another magnitude
    while (trainer.At(1, 0)[slice][at] != trainer.At(2, 0)[slice][at]) at += 2;
    bytes[at] ^= std::byte{0x20};
    engine.Write(0, slice, bytes, copy);
  }

  FakeTrainer trainer;
  MemoryKind memory;
  FakeEngine engine;
  ThreadPool pool{0};
  LiveState live;
};

// The only slice that was rejected, and nothing of it is written.
// In frames and manifest alike.
void ChangeClasses(Delta& delta, RankSlice slice,
                   const std::function<void(std::optional<ClassTable>&)>& change) {
  for (SliceDelta& changed : delta.manifest.slices) {
    if (changed.slice == slice) change(changed.classes);
  }
  for (SpooledFrame& frame : delta.frames) {
    if (frame.slice == slice) change(frame.classes);
  }
}

void CheckOnlyRejected(SplitCase& split, const StagedDelta& staged, uint32_t slice,
                       absl::StatusCode code) {
  REQUIRE(staged.rejected.size() == 1);
  INFO(ToString(staged.rejected[0].reason));
  CHECK(staged.rejected[0].slice == RankSlice(slice));
  CHECK(staged.rejected[0].reason.code() == code);
  const SliceBytes before = split.engine.Read(0, slice);
  Write(*split.engine.weights, staged);
  for (uint32_t s = 0; s < 3; ++s) {
    CHECK(split.engine.Read(0, s) == (s == slice ? before : split.trainer.At(2, 0)[s]));
  }
}

}  // namespace

TEST_CASE("class-split blocks reach every copy, in one piece or gathered", "[staging]") {
  SplitCase split(GENERATE(0.0, 0.01, 0.9), GENERATE(1, 3));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Delta delta = MakeDelta(split.trainer, rank, 1, 2);
    // Floats are class-split throughout: also the columns, whose blocks are gathered row by row.
    for (const SliceDelta& slice : delta.manifest.slices) CHECK(slice.classes == kTable);
    const SegmentMap& columns = split.engine.Places(rank, rank == 0 ? 1 : 0)[0];
    CHECK(columns.Contiguous(0, columns.element_count()).empty());

    const StagedDelta staged = split.StageRank(rank);
    CHECK(staged.rejected.empty());
    CHECK_FALSE(staged.in_place);
    if (rank == 0) CHECK(split.engine.Equals(split.trainer, 1));
    Write(*split.engine.weights, staged);
    Write(*split.engine.weights, staged);  // a commit may be repeated: staged values are absolute
  }
  CHECK(split.engine.Equals(split.trainer, 2));
}

TEST_CASE("class-split blocks past the cap are applied in place, to every copy", "[staging]") {
  SplitCase split(0.2, GENERATE(1, 2));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Delta delta = MakeDelta(split.trainer, rank, 1, 2);
    const StagedDelta staged = split.StageRank(rank, 16);
    CHECK(staged.rejected.empty());
    REQUIRE(staged.in_place);
    REQUIRE(ApplyFramesInPlace(*split.engine.weights, TrainerRank(rank), delta.frames, delta.spool,
                               split.pool)
                .ok());
  }
  CHECK(split.engine.Equals(split.trainer, 2));
}

TEST_CASE(
    "a slice whose base differs is rejected from a class-split delta and the others are staged",
    "[staging]") {
  SplitCase split(0.05);
  const uint32_t slice = GENERATE(0, 2);  // in one piece, gathered
  SECTION("the receiver has read the differing base") {
    split.FlipUnchanged(slice, 0);
    split.live = ReadLive(*split.engine.weights, split.pool);
    CheckOnlyRejected(split, split.StageRank(0), slice, absl::StatusCode::kFailedPrecondition);
  }
  SECTION("an element that does not change differs since digests were read") {
    // Class ranks count the magnitudes of all elements, so the changes land on wrong elements.
    split.FlipUnchanged(slice, 0);
    CheckOnlyRejected(split, split.StageRank(0), slice, absl::StatusCode::kDataLoss);
  }
}

TEST_CASE("a class-split delta is rejected for a slice whose copies differ", "[staging]") {
  SplitCase split(0.05, 2);
  split.FlipUnchanged(0, 1);
  split.live = ReadLive(*split.engine.weights, split.pool);
  const StagedDelta staged = split.StageRank(0);
  CheckOnlyRejected(split, staged, 0, absl::StatusCode::kFailedPrecondition);
  CHECK(Message(staged.rejected[0].reason).find("copies differ") != std::string_view::npos);
}

TEST_CASE("a class table that differs from the encoder's is detected before any write",
          "[staging]") {
  SplitCase split(0.05);
  Delta delta = MakeDelta(split.trainer, 0, 1, 2);
  const auto damage = GENERATE(
      std::function<void(ClassTable&)>([](ClassTable& table) { table.thresholds[1] = 121; }),
      std::function<void(ClassTable&)>([](ClassTable& table) { table.threshold_count = 2; }),
      std::function<void(ClassTable&)>([](ClassTable& table) { --table.hot_below; }),
      std::function<void(ClassTable&)>([](ClassTable& table) { ++table.hot_scale; }));
  ChangeClasses(delta, RankSlice(1), [&](auto& classes) { damage(*classes); });
  const StagedDelta staged = Stage(split.engine, 0, delta, split.live, split.pool);
  CheckOnlyRejected(split, staged, 1, absl::StatusCode::kDataLoss);
}

TEST_CASE("class-split blocks without a table count as damaged", "[staging]") {
  SplitCase split(0.05);
  Delta delta = MakeDelta(split.trainer, 0, 1, 2);
  ChangeClasses(delta, RankSlice(2), [](auto& classes) { classes.reset(); });
  const StagedDelta staged = Stage(split.engine, 0, delta, split.live, split.pool);
  CheckOnlyRejected(split, staged, 2, absl::StatusCode::kDataLoss);
  CHECK(Message(staged.rejected[0].reason).find("no class table") != std::string_view::npos);
}

TEST_CASE("class-split deltas are composed over what the engine holds", "[staging]") {
  SplitCase split(0.02, GENERATE(1, 3));
  split.trainer.Publish(0.02);
  split.trainer.Publish(0.3);
  const bool drifted = GENERATE(false, true);
  if (drifted) {
    split.FlipUnchanged(2, 0);  // gathered
    split.live = ReadLive(*split.engine.weights, split.pool);
  }
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const RankLayout& layout = *split.trainer.ranks()[rank];
    std::vector<std::vector<std::byte>> objects;
    std::vector<DeltaManifest> manifests;
    for (uint64_t base = 1; base < 4; ++base) {
      objects.push_back(split.trainer.Object(rank, base, base + 1));
      manifests.push_back(*ParseObjectManifest(objects.back(), layout));
    }
    std::vector<DeltaLink> chain;
    for (size_t i = 0; i < objects.size(); ++i) {
      chain.push_back(
          {.manifest = &manifests[i],
           .frame = [&object = objects[i]](const FrameEntry& entry,
                                           std::vector<std::byte>&) -> Result<ByteSpan> {
             return FrameBytes(object, *ParseObjectHeader(object), entry);
           }});
    }
    const HeldWeights old(*split.engine.weights, TrainerRank(rank), split.live.ranks[rank].slices);
    const auto squashed = SquashOver(layout, chain, old, kPlenty, split.pool);
    INFO(ToString(squashed.status()));
    REQUIRE(squashed.ok());
    Delta delta{.manifest = {}, .frames = {}, .spool = SpoolOf(*squashed)};
    auto object = ParseObject(delta.spool, layout);
    REQUIRE(object.ok());
    delta.manifest = std::move(object->manifest);
    delta.frames = std::move(object->frames);
    const StagedDelta staged = Stage(split.engine, rank, delta, split.live, split.pool);
    if (drifted && rank == 0) {
      REQUIRE(staged.rejected.size() == 1);
      CHECK(staged.rejected[0].slice == RankSlice(2));
      CHECK(absl::IsFailedPrecondition(staged.rejected[0].reason));
    } else {
      CHECK(staged.rejected.empty());
    }
    Write(*split.engine.weights, staged);
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      const bool refused = drifted && rank == 0 && s == 2;
      CHECK((split.engine.Read(rank, s) == split.trainer.At(4, rank)[s]) != refused);
    }
  }
}

TEST_CASE("an object with an invalid class table is refused", "[staging]") {
  SplitCase split(0.05);
  const RankLayout& layout = *split.trainer.ranks()[0];
  const std::vector<std::byte> object = split.trainer.Object(0, 1, 2);
  const uint64_t frames_bytes = ParseObjectHeader(object)->frames_bytes;
  DeltaManifest manifest = *ParseObjectManifest(object, layout);
  const auto refused = [&] {
    const std::vector<std::byte> damaged =
        samples::Assemble(manifest, ByteSpan(object).last(frames_bytes), 1);
    return ParseObject(SpoolOf(damaged), layout).status();
  };
  REQUIRE(refused().ok());
  const auto thresholds = GENERATE(std::array<uint8_t, 3>{60, 60, 200},   // not ascending
                                   std::array<uint8_t, 3>{0, 120, 200});  // a zero threshold
  for (size_t i = 0; i < 3; ++i) manifest.slices[1].classes->thresholds[i] = thresholds[i];
  CHECK(absl::IsDataLoss(refused()));
}

}  // namespace dws
