// One cap for all bytes of a version that a receiver holds before it commits, staged or spooled.
#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "receiver_daemon/commit/prepare.h"
#include "tests/fakes/jumping_clock.h"
#include "tests/fakes/temp_folder.h"
#include "tests/receiver_daemon/staging_case.h"

namespace dws {

TEST_CASE("no delta is staged beyond the cap", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(GENERATE(0.0, 0.01, 0.4, 20.0));
  const MemoryKind memory = AnyMemory();
  const FakeEngine engine(trainer.layouts(), GENERATE(1, 3), 1, memory);
  engine.Load(trainer, 1);
  const uint32_t helpers = GENERATE(0U, 1U);
  ThreadPool pool(helpers);
  const LiveState live = ReadLive(*engine.weights, pool);
  const Delta delta = MakeDelta(trainer, 0, 1, 2);

  uint64_t least = kPlenty;  // the smallest cap that sufficed
  // Kernels that run on the host are slow, so take fewer steps.
  const uint64_t step = memory == MemoryKind::kHost ? 3 : 16;
  for (uint64_t cap = 1'000; cap <= 8'000'000; cap = cap * step / 2) {
    const StagedDelta staged = Stage(engine, 0, delta, live, pool, cap);
    CHECK(staged.rejected.empty());
    REQUIRE(StagedBytes(staged) <= cap);
    if (staged.in_place) {
      REQUIRE(staged.groups.empty());
      continue;
    }
    least = std::min(least, cap);
    Write(*engine.weights, staged);
    for (uint32_t s = 0; s < 3; ++s) REQUIRE(engine.Read(0, s) == trainer.At(2, 0)[s]);
    engine.Load(trainer, 1);
  }
  // In place is chosen only when the cap is nearly used up. With two threads the unused rest of
  // their chunks depends on which thread stages which frame, so there is no bound to test.
  if (helpers != 0 || memory != MemoryKind::kHost) return;
  const StagedDelta staged = Stage(engine, 0, delta, live, pool, kPlenty);
  CHECK(least < StagedBytes(staged) * 2 + 4'000);
}

TEST_CASE("a delta that changes every element is staged as the bytes it writes", "[staging]") {
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(30.0);
  const FakeEngine engine(trainer.layouts());
  engine.Load(trainer, 1);
  ThreadPool pool(0);
  const uint64_t bytes = 150'001 * 2 + 300 * 350 * 2;
  // Staged as elements it would take three times the bytes; each row of `columns` has one run.
  const StagedDelta staged = Stage(engine, 0, MakeDelta(trainer, 0, 1, 2),
                                   ReadLive(*engine.weights, pool), pool, bytes * 3 / 2);
  CHECK(staged.rejected.empty());
  CHECK_FALSE(staged.in_place);
  Write(*engine.weights, staged);
  for (uint32_t s = 0; s < 3; ++s) CHECK(engine.Read(0, s) == trainer.At(2, 0)[s]);
}

TEST_CASE("full tensors and a delta share one cap", "[staging]") {
  FakeTrainer trainer(
      {MakeRankLayout({{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {150'001}}},
                       {.tensor = {.name = "b", .dtype = DType::kBF16, .shape = {150'001}}}})});
  trainer.Publish();
  trainer.Publish(0.02);
  const FakeEngine engine(trainer.layouts());
  engine.Load(trainer, 1);
  SliceBytes drifted = engine.Read(0, 1);
  drifted[5] ^= std::byte{1};
  engine.Write(0, 1, drifted);
  ThreadPool pool(0);
  LiveState live = LiveAt(trainer, *engine.weights, 1, pool);
  live.drifted = true;

  const TempFolder folder;
  const RealClock clock;
  const uint64_t full_bytes = 150'001 * 2;
  for (const uint64_t cap : {uint64_t{1'000}, full_bytes + full_bytes / 20, 4 * full_bytes}) {
    INFO("cap " << cap);
    Preparer preparer(trainer, trainer.sources(), pool, clock,
                      {.spool_folder = folder.path(), .staging_bytes_max = cap});
    const Result<Prepared> prepared = preparer.Prepare(*engine.weights, live, trainer.Target(2));
    REQUIRE(prepared.ok());
    const PreparedRank& rank = prepared->ranks.at(0);
    REQUIRE(rank.full_slices == std::vector<RankSlice>{RankSlice(1)});
    CHECK(prepared->staging_bytes() <= cap);
    // Room for one of them is not enough for both.
    CHECK(rank.full->spool.on_disk() == (cap < 4 * full_bytes));
    CHECK(rank.delta_frames.empty() == (cap > 1'000));
  }
}

TEST_CASE("memory that a version needed is kept for the next one, for a while", "[staging]") {
  FakeTrainer trainer(
      {MakeRankLayout({{.tensor = {.name = "a", .dtype = DType::kBF16, .shape = {8'000'003}}}})});
  trainer.Publish();
  trainer.Publish(0.2);  // staged in chunks of whole pages
  const FakeEngine engine(trainer.layouts());
  engine.Load(trainer, 1);
  ThreadPool pool(0);
  const LiveState live = LiveAt(trainer, *engine.weights, 1, pool);
  JumpingClock clock;
  const TempFolder folder;
  Preparer preparer(trainer, trainer.sources(), pool, clock,
                    {.spool_folder = folder.path(), .staging_bytes_max = kPlenty});
  const auto prepare = [&](Way way) {
    const Result<Prepared> prepared =
        preparer.Prepare(*engine.weights, live, trainer.Target(2), {.way = way});
    REQUIRE(prepared.ok());
    CHECK(preparer.spare_bytes() == 0);
    return prepared->staging_bytes();
  };
  const uint64_t staged = prepare(Way::kDelta);
  const uint64_t kept = preparer.spare_bytes();
  CHECK(kept > staged / 2);
  CHECK(kept <= staged);
  preparer.ReturnSpare();
  CHECK(prepare(Way::kDelta) == staged);
  CHECK(preparer.spare_bytes() == kept);
  SECTION("until nothing has needed it for some time") {
    clock.Jump(Preparer::kSpareTime / 2);
    preparer.ReturnSpare();
    CHECK(preparer.spare_bytes() == kept);
    clock.Jump(Preparer::kSpareTime / 2 + std::chrono::seconds(1));
    preparer.ReturnSpare();
  }
  SECTION("until it is dropped") { preparer.DropSpare(); }
  SECTION("until a version does not need it") { prepare(Way::kFull); }
  CHECK(preparer.spare_bytes() == 0);
}

}  // namespace dws
