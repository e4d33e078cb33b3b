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

TEST_CASE("a delta is open until the log has it, which is before it is announced",
          "[publish_pipeline]") {
  std::mt19937_64 random(Catch::rngSeed());
  ThreadPool pool(0);
  const RankStatePtr state = MakeState(SmallLayout(), kNoLimits);
  Weights weights = RandomWeights(state->layout(), random);
  PublishAll(state, pool, 1, weights);
  std::atomic<bool> disk_full{false};
  std::atomic<bool> trouble{false};
  std::vector<OpenDelta::Stage> recorded;
  std::vector<OpenDelta::Stage> announced;
  PublishPipeline pipeline(
      {.record = [&](const RankState&, const RetainedVersion&) -> Status {
         recorded.push_back(state->snapshot->in_flight().open_delta()->stage());
         return disk_full ? ResourceExhaustedError("full") : OkStatus();
       },
       .announce =
           [&](const RankStatePtr&) {
             announced.push_back(state->snapshot->in_flight().open_delta()->stage());
             CHECK(state->log->Newest()->version == WeightVersion(2));
           },
       .on_trouble = [&](const Status& status) { trouble = !status.ok(); }});
  const auto submit = [&](uint64_t version) {
    Perturb(weights, 0.01, random);
    REQUIRE(pipeline.Reserve(kTimeout).ok());
    CapturedVersion captured =
        CaptureAll(*state, pool, version, weights, DeltaProfile::kFast, [] {});
    REQUIRE(captured.open_delta != nullptr);
    REQUIRE(captured.open_delta->At(2).has_value());
    pipeline.Submit({.state = state, .captured = std::move(captured)});
  };
  submit(2);
  REQUIRE(pipeline.Drain(kTimeout).ok());
  CHECK(recorded == std::vector{OpenDelta::Stage::kOpen});
  CHECK(announced == std::vector{OpenDelta::Stage::kPublished});
  disk_full = true;
  submit(3);
  while (!trouble) std::this_thread::yield();
  pipeline.Stop();
  CHECK(announced.size() == 1);
  CHECK(state->snapshot->in_flight().open_delta()->stage() == OpenDelta::Stage::kGivenUp);
}

}  // namespace
}  // namespace dws
