// When an engine is paused to load the checkpoint, and when not.
#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <string>

#include "tests/receiver_daemon/follower/follower_case.h"

namespace dws {

TEST_CASE("requests that an engine ends before it pauses are no part of the pause", "[follower]") {
  Job job;
  job.Publish(1);
  const auto follower = job.Follow();
  job.engine.on_pause = [&job] { job.clock.now += std::chrono::seconds(100); };
  job.engine.on_load = [&job] { job.clock.now += std::chrono::seconds(3); };
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().last_pause_seconds == 3);
}

TEST_CASE("a receiver that starts again does not pause an engine that has its weights",
          "[follower]") {
  Job job;
  job.Publish(1);
  {
    const auto follower = job.Follow();
    REQUIRE(follower->Step().ok());
  }
  job.engine.Look();
  SECTION("it says its version") {
    const auto follower = job.Follow();
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() == Calls{"connect", "reports 1"});
    CHECK(follower->view().loaded == 1);
    CHECK(job.ready);
    job.Publish(2);
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() == Calls{"pause", "load 2", "tell 2", "resume 2"});
  }
  SECTION("it was restarted meanwhile") {
    job.engine.answers["reports 1"] = FailedPreconditionError("it says default");
    const auto follower = job.Follow();
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() ==
          Calls{"connect", "reports 1", "pause", "load 1", "tell 1", "resume 1"});
  }
  SECTION("another checkpoint has its number") {
    const auto record = dws::testing::ReadFile(job.RecordPath());
    const auto state = dws::testing::ReadFile(job.StatePath());
    fs::remove_all(job.local);
    fs::remove_all(job.PathOf(1));
    slime::WriteBase(job.local, slime::Next(job.weights, 7));
    dws::testing::WriteFile(job.RecordPath(), record);
    dws::testing::WriteFile(job.StatePath(), state);
    const auto follower = job.Follow();
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() == Calls{"connect", "pause", "load 1", "tell 1", "resume 1"});
  }
  SECTION("another engine is used") {
    job.url = "http://engine2";
    const auto follower = job.Follow();
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() == Calls{"connect", "pause", "load 1", "tell 1", "resume 1"});
  }
  SECTION("the record was cut") {
    const std::string text(AsText(dws::testing::ReadFile(job.RecordPath())));
    size_t bytes = 0;
    SECTION("to nothing") { bytes = 0; }
    SECTION("to its first line") { bytes = job.url.size() + 1; }
    SECTION("to two lines") { bytes = job.url.size() + 3; }
    SECTION("by its end") { bytes = text.size() - 1; }
    dws::testing::WriteText(job.RecordPath(), text.substr(0, bytes));
    const auto follower = job.Follow();
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() == Calls{"connect", "pause", "load 1", "tell 1", "resume 1"});
  }
  SECTION("the receiver died while the engine was paused") {
    job.Publish(2);
    {
      const auto follower = job.Follow();
      job.engine.answers["load 2"] = UnavailableError("this process is about to die");
      CHECK_FALSE(follower->Step().ok());
    }
    job.engine.Look();
    job.engine.answers.clear();
    const auto follower = job.Follow();
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() == Calls{"connect", "pause", "load 2", "tell 2", "resume 2"});
  }
}

TEST_CASE("a version that changes no tensor is told to the engine without a pause", "[follower]") {
  Job job;
  job.Publish(1);
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  job.engine.Look();
  slime::Publish(job.versions, job.weights, job.weights, {.version = 2});
  REQUIRE(follower->Step().ok());
  CHECK(job.engine.Look() == Calls{"reports 1", "tell 2"});
  CHECK(follower->view().loaded == 2);
  CHECK(follower->view().loads == 2);  // versions 0 and 1
}

TEST_CASE("an engine that was restarted loads a version that changes no tensor", "[follower]") {
  Job job;
  job.Publish(1);
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  job.engine.Look();
  slime::Publish(job.versions, job.weights, job.weights, {.version = 2});
  SECTION("it says that it has no version") {
    job.engine.answers["reports 1"] = FailedPreconditionError("it says default");
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() == Calls{"reports 1", "pause", "load 2", "tell 2", "resume 2"});
    CHECK(follower->view().loads == 3);
  }
  SECTION("it cannot be paused yet") {
    job.engine.answers["reports 1"] = UnavailableError("connection refused");
    job.engine.answers["pause"] = UnavailableError("connection refused");
    CHECK_FALSE(follower->Step().ok());
    CHECK(job.engine.Look() == Calls{"reports 1", "pause"});
    CHECK_FALSE(follower->view().loaded.has_value());
    CHECK_FALSE(job.ready);
  }
  SECTION("it cannot be told a version without loading it") {
    job.engine.answers["tell 2"] = FailedPreconditionError("it says 1");
    job.engine.on_load = [&job] { job.engine.answers.erase("tell 2"); };
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() ==
          Calls{"reports 1", "tell 2", "pause", "load 2", "tell 2", "resume 2"});
    CHECK(follower->view().loaded == 2);
  }
  SECTION("engines of its kind do not say their version") {
    job.engine.answers["reports 1"] = UnimplementedError("it does not say");
    REQUIRE(follower->Step().ok());
    CHECK(job.engine.Look() == Calls{"reports 1", "tell 2"});
  }
}

TEST_CASE("an engine that has lost its version is not ready although the disk cannot be written",
          "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  fs::remove(job.RecordPath());
  fs::create_directories(job.RecordPath() + "/not a file");
  job.engine.answers["check"] = FailedPreconditionError("it says default");
  job.clock.now += std::chrono::minutes(1);
  CHECK_FALSE(follower->Step().ok());
  CHECK_FALSE(follower->view().loaded.has_value());
  CHECK_FALSE(job.ready);
}

TEST_CASE("an engine that refuses several loads in a row is to be restarted", "[follower]") {
  Job job;
  job.engine.answers["load 0"] = FailedPreconditionError("");
  const auto follower = job.Follow();
  CHECK(Message(follower->Step()).find("restart") == std::string::npos);
  CHECK(Message(follower->Step()).find("restart") == std::string::npos);
  const std::string third(Message(follower->Step()));
  CHECK_THAT(third, Contains("restart the engine: it has refused at least 3 loads in a row"));
  CHECK_THAT(follower->view().trouble, Contains("restart the engine"));
  // The same words again: a failure is logged when it changes.
  CHECK(Message(follower->Step()) == third);
  SECTION("it loads") {
    job.engine.answers.clear();
    CHECK(follower->Step().ok());
  }
  SECTION("it is restarted and refuses once") {
    job.engine.answers["connect"] = UnavailableError("connection refused");
    CHECK_FALSE(follower->Step().ok());
    job.engine.answers.erase("connect");
    CHECK(Message(follower->Step()).find("restart") == std::string::npos);
  }
}

TEST_CASE("a version that an engine does not report is no refused load", "[follower]") {
  Job job;
  job.engine.answers["tell 0"] = FailedPreconditionError("it says default");
  const auto follower = job.Follow();
  for (int i = 0; i < 4; ++i) {
    const Status failed = follower->Step();
    CHECK_THAT(Text(failed), Contains("it says default") && !Contains("restart the engine"));
  }
  CHECK_FALSE(follower->view().loaded.has_value());
  CHECK(job.engine.paused);
  job.engine.answers.clear();
  CHECK(follower->Step().ok());
}

TEST_CASE("a verification compares the engine's checksum with the one before", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  follower->Start();
  const auto verify = [&follower] {
    std::promise<Status> done;
    follower->RequestVerify([&done](const Status& status) { done.set_value(status); });
    return done.get_future().get();
  };
  CHECK(verify().ok());
  CHECK(verify().ok());
  job.engine.checksum = "{\"other\": 1}";
  const Status other = verify();
  job.engine.answers["checksum"] = UnimplementedError("it has none");
  CHECK(verify().ok());
  follower->Stop();
  CHECK(absl::IsDataLoss(other));
  CHECK_THAT(std::string(Message(other)), Contains("something else has written its weights"));
}

TEST_CASE("a command before each look can hold versions back", "[follower]") {
  Job job;
  job.required = GENERATE(true, false);
  const std::string flag = job.folder.File("mounted");
  job.before_read = shared::VisibilityHook({"/usr/bin/test", "-e", flag}, job.versions);
  job.Publish(1);
  const auto follower = job.Follow(/*with_engine=*/false);
  const Status looked = follower->Step();
  CHECK(looked.ok() == !job.required);
  CHECK(follower->view().version == (job.required ? 0 : 1));
  if (job.required) CHECK_THAT(Text(looked), Contains("before the look at the folder"));
  dws::testing::WriteText(flag, "");
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().version == 1);
}

TEST_CASE("an engine is watched while the command before each look fails", "[follower]") {
  Job job;
  job.required = true;
  const std::string flag = job.folder.File("mounted");
  job.before_read = shared::VisibilityHook({"/usr/bin/test", "-e", flag}, job.versions);
  const auto follower = job.Follow();
  CHECK_THAT(Text(follower->Step()), Contains("before the look at the folder"));
  CHECK(job.engine.Look() == Calls{"connect", "pause", "load 0", "tell 0", "resume 0"});
  CHECK(job.ready);
  job.engine.answers["check"] = UnavailableError("connection refused");
  job.clock.now += std::chrono::minutes(1);
  const std::string both = Text(follower->Step());
  CHECK_THAT(both, Contains("connection refused") && Contains("before the look at the folder"));
  CHECK(job.engine.Look() == Calls{"check"});
  CHECK_FALSE(job.ready);
}

}  // namespace dws
