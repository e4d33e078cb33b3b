#include "receiver_daemon/weights/staging.h"

#include <catch2/catch.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/receiver_daemon/staging_case.h"

namespace dws {

TEST_CASE("staging writes nothing and scattering produces exactly the next version", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(GENERATE(0.0, 0.01, 0.9));
  const FakeEngine engine(trainer.layouts(), GENERATE(1, 2), 1, AnyMemory());
  engine.Load(trainer, 1);
  ThreadPool pool(GENERATE(0, 3));
  const LiveState live = ReadLive(*engine.weights, pool);

  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Delta delta = MakeDelta(trainer, rank, 1, 2);
    const StagedDelta staged = Stage(engine, rank, delta, live, pool);
    CHECK(staged.rejected.empty());
    CHECK_FALSE(staged.in_place);
    if (rank == 0) CHECK(engine.Equals(trainer, 1));
    Write(*engine.weights, staged);
    Write(*engine.weights, staged);  // a commit may be repeated
  }
  CHECK(engine.Equals(trainer, 2));
}

TEST_CASE("a delta beyond the staging cap is verified and applied in place", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(0.2);
  const MemoryKind kind = AnyMemory();
  const FakeEngine engine(trainer.layouts(), 1, 1, kind);
  engine.Load(trainer, 1);
  ThreadPool pool(1);
  const LiveState live = ReadLive(*engine.weights, pool);

  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Delta delta = MakeDelta(trainer, rank, 1, 2);
    const Duration before = engine.weights->UploadTime();
    const StagedDelta staged = Stage(engine, rank, delta, live, pool, 16);
    const Duration staging = engine.weights->UploadTime() - before;
    CHECK((staging > Duration::zero()) == (kind == MemoryKind::kCuda));
    CHECK(staged.rejected.empty());
    CHECK(staged.in_place);
    CHECK(staged.groups.empty());
    REQUIRE(ApplyFramesInPlace(*engine.weights, TrainerRank(rank), delta.frames, delta.spool, pool)
                .ok());
  }
  CHECK(engine.Equals(trainer, 2));
}

TEST_CASE("frames may be staged one by one, and slices in any order", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(0.1);
  const FakeEngine engine(trainer.layouts(), 1, 1, AnyMemory());
  engine.Load(trainer, 1);
  ThreadPool pool(1);
  const LiveState live = ReadLive(*engine.weights, pool);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Delta delta = MakeDelta(trainer, rank, 1, 2);
    DeltaStager stager(*engine.weights, TrainerRank(rank), kPlenty, pool);
    for (auto frame = delta.frames.rbegin(); frame != delta.frames.rend(); ++frame) {
      REQUIRE(stager.Add(std::span(&*frame, 1), delta.spool).ok());
    }
    const auto staged = stager.Finish(delta.manifest, live.ranks[rank].slices);
    REQUIRE(staged.ok());
    CHECK(staged->rejected.empty());
    CHECK(staged->groups.size() == delta.frames.size());
    CHECK(engine.Equals(trainer, 1) == (rank == 0));
    Write(*engine.weights, *staged);
  }
  CHECK(engine.Equals(trainer, 2));
}

TEST_CASE("a slice with other frames than the manifest's is rejected", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(0.1);
  const FakeEngine engine(trainer.layouts(), 1, 1);
  engine.Load(trainer, 1);
  ThreadPool pool(1);
  const LiveState live = ReadLive(*engine.weights, pool);
  Delta delta = MakeDelta(trainer, 0, 1, 2);
  REQUIRE(delta.frames.size() > 1);
  const RankSlice slice = delta.frames[0].slice;
  std::string why;
  SECTION("one is missing") {
    std::erase_if(delta.frames, [&](const auto& frame) { return frame.slice == slice; });
    why = "0 frames arrived, the manifest has 1";
  }
  SECTION("it is another one") {
    delta.manifest.slices[0].frames[0].checksum ^= 1;
    why = "is not the manifest's";
  }
  SECTION("it has another class table") {
    delta.frames[0].classes.emplace();
    why = "is not the manifest's";
  }
  const StagedDelta staged = Stage(engine, 0, delta, live, pool);
  REQUIRE(staged.rejected.size() == 1);
  CHECK(staged.rejected[0].slice == slice);
  CHECK(absl::IsDataLoss(staged.rejected[0].reason));
  CHECK_THAT(std::string(Message(staged.rejected[0].reason)), Catch::Matchers::Contains(why));
}

TEST_CASE("two trainer ranks are staged at once and committed together", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  const FakeEngine engine(trainer.layouts(), 2, 1, AnyMemory());
  engine.Load(trainer, 1);
  ThreadPool pool(2);
  for (uint64_t version = 2; version < 8; ++version) {
    trainer.Publish(0.3);
    const LiveState live = LiveAt(trainer, *engine.weights, version - 1, pool);
    const std::vector<Delta> deltas = [&] {
      std::vector<Delta> made;
      for (uint32_t rank = 0; rank < 2; ++rank) {
        made.push_back(MakeDelta(trainer, rank, version - 1, version));
      }
      return made;
    }();
    std::vector<std::optional<Result<StagedDelta>>> staged(2);
    pool.ParallelFor(2, [&](size_t rank, size_t) {
      staged[rank] = StageDelta(*engine.weights, TrainerRank(static_cast<uint32_t>(rank)),
                                deltas[rank].manifest, deltas[rank].frames, deltas[rank].spool,
                                live.ranks[rank].slices, kPlenty, pool);
    });
    ScatterList list;
    for (const auto& rank : staged) {
      REQUIRE(rank->ok());
      CHECK((*rank)->rejected.empty());
      AddToList((*rank)->groups, list);
    }
    REQUIRE(Scatter(*engine.weights, list, pool).ok());
    CHECK(engine.Equals(trainer, version));
  }
}

TEST_CASE("a slice whose base differs is rejected and the others are staged", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(0.05);
  const FakeEngine engine(trainer.layouts(), 1, 1, AnyMemory());
  engine.Load(trainer, 1);
  SliceBytes drifted = engine.Read(0, 1);
  drifted[77] ^= std::byte{4};
  engine.Write(0, 1, drifted);
  ThreadPool pool(1);

  const StagedDelta staged =
      Stage(engine, 0, MakeDelta(trainer, 0, 1, 2), ReadLive(*engine.weights, pool), pool);
  REQUIRE(staged.rejected.size() == 1);
  CHECK(staged.rejected[0].slice == RankSlice(1));
  CHECK(absl::IsFailedPrecondition(staged.rejected[0].reason));
  Write(*engine.weights, staged);
  CHECK(engine.Read(0, 0) == trainer.At(2, 0)[0]);
  CHECK(engine.Read(0, 1) == drifted);
}

TEST_CASE(
    "a bit that flipped in a changed word since digests were read is detected before any "
    "write",
    "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(0.9);
  const FakeEngine engine(trainer.layouts(), 2, 1, AnyMemory());
  engine.Load(trainer, 1);
  ThreadPool pool(0);
  const LiveState live = ReadLive(*engine.weights, pool);
  SliceBytes drifted = engine.Read(0, 0, 1);
  size_t changed = 0;
  while (trainer.At(1, 0)[0][changed] == trainer.At(2, 0)[0][changed]) ++changed;
  drifted[changed] ^= std::byte{64};
  engine.Write(0, 0, drifted, 1);

  const StagedDelta staged = Stage(engine, 0, MakeDelta(trainer, 0, 1, 2), live, pool);
  REQUIRE(staged.rejected.size() == 1);
  CHECK(staged.rejected[0].slice == RankSlice(0));
  CHECK(absl::IsDataLoss(staged.rejected[0].reason));
}

TEST_CASE("a slice whose copies differ is rejected", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  const FakeEngine engine(trainer.layouts(), 2, 1, AnyMemory());
  engine.Load(trainer, 1);
  SliceBytes drifted = engine.Read(1, 1);
  drifted[0] ^= std::byte{1};
  engine.Write(1, 1, drifted, 1);
  ThreadPool pool(2);
  const std::vector<SliceState> states =
      engine.weights->ComputeStates(TrainerRank(1), pool).value();
  CHECK(states[0].kind == SliceState::Kind::kHeld);
  CHECK(states[1].kind == SliceState::Kind::kDiffers);
  CHECK_FALSE(states[1].Matches(trainer.Digests(1, 1)[1]));
}

TEST_CASE("a damaged frame rejects only its slice", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(0.05);
  const FakeEngine engine(trainer.layouts(), 1, 1, AnyMemory());
  engine.Load(trainer, 1);
  ThreadPool pool(1);
  const LiveState live = ReadLive(*engine.weights, pool);
  Delta delta = MakeDelta(trainer, 0, 1, 2);
  delta.frames[0].entry.checksum ^= 1;
  const StagedDelta staged = Stage(engine, 0, delta, live, pool);
  REQUIRE(staged.rejected.size() == 1);
  CHECK(staged.rejected[0].slice == delta.frames[0].slice);
  CHECK(absl::IsDataLoss(staged.rejected[0].reason));
  CHECK(StagedBytes(staged) > 0);
}

TEST_CASE("full tensors may be written to every copy as they come", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(0.5);
  const FakeEngine engine(trainer.layouts(), 2, 1, AnyMemory());
  engine.Load(trainer, 1);
  DirectWrite direct(*engine.weights);
  ThreadPool pool(3);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const RankLayout& layout = *trainer.ranks()[rank];
    std::vector<BlockRange> pieces;  // of one block, or two
    for (const BlockRange& whole : WholeSlices(layout)) {
      const uint32_t together = whole.slice.value() % 2 + 1;
      for (uint32_t b = 0; b < whole.block_count; b += together) {
        pieces.push_back({whole.slice, b, std::min(together, whole.block_count - b)});
      }
    }
    pool.ParallelFor(pieces.size(), [&](size_t i, size_t) {
      const SliceBytes& bytes = trainer.At(2, rank)[pieces[i].slice.value()];
      const ByteSpan part =
          ByteSpan(bytes).subspan(FirstByte(layout, pieces[i]), SizeBytes(layout, pieces[i]));
      const SliceBytes wrong(part.size(), std::byte{7});
      // The last write counts.
      DWS_CHECK(direct.Write(TrainerRank(rank), pieces[i], wrong).ok());
      DWS_CHECK(direct.Write(TrainerRank(rank), pieces[i], part).ok());
    });
  }
  CHECK(engine.Equals(trainer, 2));
  CHECK(direct.touched().size() == trainer.layouts()->slice_count());
}

TEST_CASE("full tensors are verified from the spool before they are written", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  const FakeEngine engine(trainer.layouts(), 2, 1, AnyMemory());
  ThreadPool pool(1);
  const std::vector<RankSlice> slices = {RankSlice(0), RankSlice(2)};
  const RankLayout& layout = *trainer.ranks()[0];
  const std::vector<Digest> expected = trainer.Digests(1, 0);
  const SyncTarget target = trainer.Target(1);
  auto full = trainer.sources().Full(
      {.target = target, .rank = TrainerRank(0)},
      {.layout = layout, .slices = slices, .expected = expected},
      {.folder = "", .memory_bytes_max = kPlenty, .size_bytes_max = kPlenty});
  REQUIRE(full.ok());
  REQUIRE(VerifyFull(layout, slices, full->frames, full->spool, expected, pool).ok());

  SECTION("a digest of another version is refused") {
    std::vector<Digest> other = expected;
    other[2].lane1 ^= 1;
    const Status status = VerifyFull(layout, slices, full->frames, full->spool, other, pool);
    CHECK(absl::IsDataLoss(status));
    CHECK(Message(status).find("'columns' slice 1") != std::string_view::npos);
  }
  SECTION("a missing block is refused") {
    full->frames.erase(full->frames.begin() + 1);
    CHECK(absl::IsDataLoss(VerifyFull(layout, slices, full->frames, full->spool, expected, pool)));
  }
  SECTION("a slice that was not requested is refused") {
    const std::vector<RankSlice> one = {RankSlice(0)};
    CHECK(absl::IsDataLoss(VerifyFull(layout, one, full->frames, full->spool, expected, pool)));
  }
  SECTION("the tensors are written in place to every copy") {
    REQUIRE(
        ApplyFramesInPlace(*engine.weights, TrainerRank(0), full->frames, full->spool, pool).ok());
    for (size_t copy = 0; copy < 2; ++copy) {
      CHECK(engine.Read(0, 0, copy) == trainer.At(1, 0)[0]);
      CHECK(engine.Read(0, 2, copy) == trainer.At(1, 0)[2]);
    }
  }
}

}  // namespace dws
