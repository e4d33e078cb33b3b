#include "sender_daemon/publish/publish_pipeline.h"

#include <atomic>
#include <catch2/catch.hpp>

#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};
constexpr std::chrono::seconds kTimeout{20};

TEST_CASE("versions are announced only after they are recorded and a full disk loses none",
          "[publish_pipeline]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  std::atomic<bool> disk_full{true};
  std::atomic<int> recorded{0};
  std::atomic<int> announced{0};
  std::atomic<int> announced_too_early{0};
  std::atomic<bool> trouble{false};
  PublishPipeline pipeline({.record = [&](const RankState&, const RetainedVersion&) -> Status {
                              if (disk_full)
                                return ResourceExhaustedError("no space left on device");
                              ++recorded;
                              return OkStatus();
                            },
                            .announce =
                                [&](const RankStatePtr&) {
                                  if (++announced > recorded) ++announced_too_early;
                                },
                            .on_trouble = [&](const Status& status) { trouble = !status.ok(); }});
  Weights weights = RandomWeights(state->layout(), random);
  for (uint64_t version = 1; version <= 1 + limits::kSealBacklogMax; ++version) {
    REQUIRE(pipeline.Reserve(kTimeout).ok());
    Perturb(weights, 0.01, random);
    pipeline.Submit({.state = state, .captured = CaptureAll(*state, pool, version, weights)});
  }
  // One job is in progress and the backlog is full: the trainer waits and is told why.
  while (!trouble) std::this_thread::yield();
  const Status held_back = pipeline.Reserve(std::chrono::milliseconds(1));
  CHECK(held_back.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(Message(held_back)).find("no space left") != std::string::npos);
  CHECK(announced == 0);
  CHECK(state->log->All().empty());

  disk_full = false;
  REQUIRE(pipeline.Drain(kTimeout).ok());
  CHECK(announced == 1 + static_cast<int>(limits::kSealBacklogMax));
  CHECK(announced_too_early == 0);
  CHECK_FALSE(trouble);
  CHECK(state->log->Newest()->version == WeightVersion(1 + limits::kSealBacklogMax));
}

TEST_CASE("a pipeline that stops while the disk is full ends without announcing",
          "[publish_pipeline]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  std::atomic<int> announced{0};
  PublishPipeline pipeline(
      {.record = [](const RankState&,
                    const RetainedVersion&) { return ResourceExhaustedError("full"); },
       .announce = [&](const RankStatePtr&) { ++announced; },
       .on_trouble = [](const Status&) {}});
  REQUIRE(pipeline.Reserve(kTimeout).ok());
  pipeline.Submit(
      {.state = state,
       .captured = CaptureAll(*state, pool, 1, RandomWeights(state->layout(), random))});
  pipeline.Stop();
  CHECK(announced == 0);
  CHECK(pipeline.Reserve(kTimeout).code() == absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace dws
