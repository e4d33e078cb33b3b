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

TEST_CASE("a follower stays ready while its step makes progress and not when it hangs",
          "[follower]") {
  TempFolder folder;
  std::filesystem::create_directories(folder.File("versions"));
  slime::WriteBase(folder.File("local"), slime::RandomWeights(1));
  PosixFileSystem disk;
  HangingFileSystem files(disk);
  ThreadPool pool(1);
  JumpingClock clock;
  Pulse pulse;
  bool ready = false;
  std::string reason;
  SlimeFollower follower({.files = files,
                          .pool = pool,
                          .clock = clock,
                          .make_control = nullptr,
                          .on_readiness =
                              [&](bool now, const std::string& why) {
                                ready = now;
                                reason = why;
                              },
                          .pulse = &pulse},
                         {.folder = folder.File("versions"),
                          .checkpoint = folder.File("local"),
                          .poll = std::chrono::milliseconds(1),
                          .pause_timeout = std::chrono::seconds(1)});
  REQUIRE(follower.Step().ok());
  CHECK(ready);
  clock.Jump(std::chrono::hours(1));  // between steps no progress is expected
  follower.ShowReadiness();
  CHECK(ready);

  files.Hang();
  std::atomic<bool> stepped = false;
  std::thread stepping([&] { stepped = follower.Step().ok(); });
  const bool hangs = Eventually([&] { return files.holds_list(); });
  follower.ShowReadiness();
  for (int i = 0; i < 10; ++i) {
    clock.Jump(limits::kStepStillMax - std::chrono::seconds(1));
    pulse.Beat();
    follower.ShowReadiness();
  }
  const bool ready_with_progress = ready;
  clock.Jump(limits::kStepStillMax);
  follower.ShowReadiness();
  const bool ready_without = ready;
  const double failing = follower.view().seconds_failing;
  files.Release();
  stepping.join();
  CHECK(stepped);
  CHECK(hangs);
  CHECK(ready_with_progress);
  CHECK_FALSE(ready_without);
  CHECK(failing >= limits::kStepStillMax.count());
  CHECK(ready);  // the step has ended
  CHECK(follower.view().seconds_failing == 0);
}

TEST_CASE("a first look that takes long does not make a follower stale", "[follower]") {
  TempFolder folder;
  std::filesystem::create_directories(folder.File("versions"));
  slime::WriteBase(folder.File("local"), slime::RandomWeights(1));
  PosixFileSystem disk;
  HangingFileSystem files(disk);
  ThreadPool pool(1);
  JumpingClock clock;
  Pulse pulse;
  bool ready = false;
  std::string reason;
  SlimeFollower follower({.files = files,
                          .pool = pool,
                          .clock = clock,
                          .make_control = nullptr,
                          .on_readiness =
                              [&](bool now, const std::string& why) {
                                ready = now;
                                reason = why;
                              },
                          .pulse = &pulse},
                         {.folder = folder.File("versions"),
                          .checkpoint = folder.File("local"),
                          .poll = std::chrono::milliseconds(1),
                          .pause_timeout = std::chrono::seconds(1)});
  files.Hang(folder.File("versions"));
  std::atomic<bool> stepped = false;
  std::thread stepping([&] { stepped = follower.Step().ok(); });
  const bool looks = Eventually([&] { return files.holds_list(); });
  follower.ShowReadiness();
  clock.Jump(limits::kStaleAfterDefault + std::chrono::seconds(1));
  pulse.Beat();
  follower.ShowReadiness();
  const std::string said = ready ? "ready" : reason;
  files.Release();
  stepping.join();
  CHECK(stepped);
  CHECK(looks);
  CHECK(said == "ready");
}

}  // namespace dws
