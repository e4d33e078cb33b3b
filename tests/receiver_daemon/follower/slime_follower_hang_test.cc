// Readiness of a follower while its folder of versions is on a mount that hangs.
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <thread>

#include "common/sync_state/presence_limits.h"
#include "receiver_daemon/follower/slime_follower.h"
#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/hanging_file_system.h"
#include "tests/fakes/jumping_clock.h"
#include "tests/fakes/temp_folder.h"

namespace dws {

namespace {

// A follower and its folder, on a file system that can hang.
struct Mount {
  Mount() {
    std::filesystem::create_directories(folder.File("versions"));
    slime::WriteBase(folder.File("local"), slime::RandomWeights(1));
  }

  TempFolder folder;
  PosixFileSystem disk;
  HangingFileSystem files{disk};
  ThreadPool pool{1};
  JumpingClock clock;
  Liveness liveness;
  bool ready = false;
  std::string reason;
  SlimeFollower follower{{.files = files,
                          .pool = pool,
                          .clock = clock,
                          .make_control = nullptr,
                          .on_readiness =
                              [this](bool now, const std::string& why) {
                                ready = now;
                                reason = why;
                              },
                          .liveness = &liveness},
                         {.folder = folder.File("versions"),
                          .checkpoint = folder.File("local"),
                          .poll = std::chrono::milliseconds(1),
                          .pause_timeout = std::chrono::seconds(1)}};
};

}  // namespace

TEST_CASE("a follower stays ready while its step makes progress and not when it hangs",
          "[follower]") {
  Mount it;
  REQUIRE(it.follower.Step().ok());
  CHECK(it.ready);
  it.clock.Jump(std::chrono::hours(1));  // between steps no progress is expected
  it.follower.ShowReadiness();
  CHECK(it.ready);

  it.files.Hang();
  std::atomic<bool> stepped = false;
  std::thread stepping([&] { stepped = it.follower.Step().ok(); });
  const bool hangs = Eventually([&] { return it.files.holds_list(); });
  it.follower.ShowReadiness();
  for (int i = 0; i < 10; ++i) {
    it.clock.Jump(limits::kStepStillMax - std::chrono::seconds(1));
    it.liveness.Beat();
    it.follower.ShowReadiness();
  }
  const bool ready_with_progress = it.ready;
  it.clock.Jump(limits::kStepStillMax);
  it.follower.ShowReadiness();
  const bool ready_without = it.ready;
  const double failing = it.follower.view().seconds_failing;
  it.files.Release();
  stepping.join();
  CHECK(stepped);
  CHECK(hangs);
  CHECK(ready_with_progress);
  CHECK_FALSE(ready_without);
  CHECK(failing >= limits::kStepStillMax.count());
  CHECK(it.ready);  // the step has ended
  CHECK(it.follower.view().seconds_failing == 0);
}

TEST_CASE("a first look that takes long does not make a follower stale", "[follower]") {
  Mount it;
  it.files.Hang(it.folder.File("versions"));
  std::atomic<bool> stepped = false;
  std::thread stepping([&] { stepped = it.follower.Step().ok(); });
  const bool looks = Eventually([&] { return it.files.holds_list(); });
  it.follower.ShowReadiness();
  it.clock.Jump(limits::kStaleAfterDefault + std::chrono::seconds(1));
  it.liveness.Beat();
  it.follower.ShowReadiness();
  const std::string said = it.ready ? "ready" : it.reason;
  it.files.Release();
  stepping.join();
  CHECK(stepped);
  CHECK(looks);
  CHECK(said == "ready");
}

}  // namespace dws
