#include "receiver_daemon/follower/slime_follower.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "tests/receiver_daemon/follower/follower_case.h"

namespace dws {

TEST_CASE("an engine that may hold parts of two versions is not resumed", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  CHECK(job.engine.Look() == Calls{"connect", "pause", "load 0", "tell 0", "resume 0"});
  CHECK(job.ready);
  job.Publish(1);
  job.engine.answers["load 1"] = UnavailableError("a worker died");
  CHECK_FALSE(follower->Step().ok());
  job.engine.answers["pause"] = DeadlineExceededError("requests are pending");
  CHECK_FALSE(follower->Step().ok());
  CHECK(job.engine.Look() == Calls{"pause", "load 1", "connect", "pause"});
  CHECK(job.engine.paused);
  CHECK_FALSE(job.ready);
  job.engine.answers.clear();
  REQUIRE(follower->Step().ok());
  CHECK(job.engine.Look() == Calls{"connect", "pause", "load 1", "tell 1", "resume 1"});
  CHECK(job.ready);
}

TEST_CASE("an engine that cannot be paused resumes with its known weights", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  job.Publish(1);
  job.engine.answers["pause"] = DeadlineExceededError("requests are pending");
  job.engine.Look();
  CHECK_FALSE(follower->Step().ok());
  CHECK(job.engine.Look() == Calls{"pause", "resume 0"});
  CHECK_FALSE(job.engine.paused);
  CHECK(job.ready);
}

TEST_CASE("the checkpoint is not patched while the engine may still be loading it", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  job.Publish(1);
  job.engine.answers["connect"] = UnavailableError("it starts");
  CHECK_FALSE(follower->Step().ok());
  CHECK(follower->view().version == 0);
  CHECK(follower->view().newest == 1);
  CHECK_FALSE(follower->view().lag_known());  // the engine's version is not known
  job.engine.answers.clear();
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 1);
  CHECK(follower->view().lag_known());

  // The engine dies and restarts: it may read the files before it listens.
  job.Publish(2);
  job.engine.answers["pause"] = UnavailableError("no connection");
  job.engine.answers["resume 1"] = UnavailableError("no connection");
  CHECK_FALSE(follower->Step().ok());
  job.engine.answers = {{"connect", UnavailableError("it starts")}};
  job.Publish(3);
  CHECK_FALSE(follower->Step().ok());
  CHECK(follower->view().version == 2);
  CHECK(follower->view().newest == 3);
  job.engine.answers.clear();
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 3);

  job.Publish(4);
  job.engine.answers["load 4"] = DeadlineExceededError("no reply");
  CHECK_FALSE(follower->Step().ok());
  job.Publish(5);
  CHECK_FALSE(follower->Step().ok());
  CHECK(follower->view().version == 4);
  job.engine.answers.clear();
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 5);

  // An engine that refused a load no longer reads the files: a later version may succeed.
  job.Publish(6);
  job.engine.answers["load 6"] = FailedPreconditionError("success is false");
  CHECK_FALSE(follower->Step().ok());
  job.Publish(7);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 7);
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("an applied version is loaded although the next version is damaged", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  job.Publish(1);
  const Weights held = job.weights;
  job.Publish(2);
  job.Damage(2);
  CHECK_FALSE(follower->Step().ok());
  CHECK(follower->view().loaded == 1);
  CHECK_FALSE(follower->Step().ok());
  CHECK(slime::Load(job.local) == held);
}

TEST_CASE("a full checkpoint replaces earlier versions that cannot be applied", "[follower]") {
  Job job;
  const auto follower = job.Follow(false);
  job.Publish(1);
  job.Publish(2);
  job.Damage(2);
  CHECK_THAT(Text(follower->Step()), Contains("weight_v000002"));
  CHECK(follower->view().version == 1);
  job.Publish(3);
  CHECK_FALSE(follower->Step().ok());
  job.PublishFull(4);
  job.Publish(5);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().version == 5);
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("a full checkpoint without an index is taken when its file no longer changes",
          "[follower]") {
  Job job;
  const auto follower = job.Follow(false);
  job.Publish(1);
  REQUIRE(follower->Step().ok());
  job.weights = slime::Next(job.weights, 2);
  job.weights["lm_head"] = slime::Bytes(40);
  const std::string file = job.PathOf(2) + "/model.safetensors";
  fs::create_directories(job.PathOf(2));
  const Status written = safetensors::WriteTensorFile(
      job.files, file, {}, slime::TensorsOf(job.weights),
      [&](const safetensors::HeaderTensor& tensor) -> Result<ByteSpan> {
        return ByteSpan(job.weights.at(tensor.name));
      });
  REQUIRE(written.ok());
  for (int change = 0; change < 2; ++change) {  // the writer is still at work
    REQUIRE(follower->Step().ok());
    CHECK(follower->view().version == 1);
    job.clock.now += std::chrono::seconds(4);
    fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(1));
  }
  REQUIRE(follower->Step().ok());
  job.clock.now += std::chrono::seconds(6);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().version == 2);
  CHECK(slime::Load(job.local) == job.weights);
  // It also ends a wait for versions that are gone.
  job.Publish(3);
  REQUIRE(follower->Step().ok());
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("version folders without numbers are reported by name", "[follower]") {
  Job job;
  const auto follower = job.Follow(false);
  job.Publish(1);
  fs::rename(job.PathOf(1), job.versions + "/5f0c-b");
  CHECK_THAT(Text(follower->Step()), Contains("FAILED_PRECONDITION") && Contains("'5f0c-b'") &&
                                         Contains("expected names as weight_v000001"));
}

TEST_CASE("a follower that is behind what was kept continues with the newest full checkpoint",
          "[follower]") {
  Job job;
  const auto follower = job.Follow(false);
  for (const uint64_t version : {1, 2}) job.Publish(version);
  REQUIRE(follower->Step().ok());
  job.Publish(3);
  fs::remove_all(job.PathOf(3));
  job.Publish(4);
  CHECK_THAT(Text(follower->Step()),
             Contains("has version 4 and no longer version 3, which comes after"));
  job.PublishFull(5);
  job.Publish(6);
  for (const uint64_t version : {1, 2, 4}) fs::remove_all(job.PathOf(version));
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().version == 6);
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("a run that counts from 1 again is refused as soon as it is seen", "[follower]") {
  Job job;
  const auto follower = job.Follow(false);
  for (const uint64_t version : {1, 2, 3}) job.Publish(version);
  REQUIRE(follower->Step().ok());
  const Weights held = job.weights;

  fs::remove_all(job.versions);
  fs::create_directories(job.versions);
  CHECK(follower->Step().ok());  // an empty folder is no sign of another run
  job.weights = slime::RandomWeights(2);
  job.Publish(1, 2);
  CHECK_THAT(Text(follower->Step()), Contains("another run"));
  job.Publish(2, 2);
  job.Publish(3, 2);
  CHECK_THAT(Text(follower->Step()), Contains("another run"));
  CHECK_THAT(Text(follower->Step()), Contains("another run"));
  CHECK(slime::Load(job.local) == held);
  CHECK(follower->view().version == 3);

  job.PublishFull(4);
  job.Publish(5, 2);
  CHECK(follower->Step().ok());
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("a new run is still refused after a version that is empty in both runs", "[follower]") {
  Job job;
  auto follower = job.Follow(false);
  const auto old_run = slime::PublishRun(job.versions, job.weights, {"layer.0", ""});
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().version == 2);

  // The trainer starts over in the same folder; the follower may or may not see its version 1.
  const bool seen = GENERATE(true, false);
  fs::remove_all(job.versions);
  auto new_run = slime::PublishRun(job.versions, job.weights, {"layer.1"});
  if (seen) CHECK_THAT(Text(follower->Step()), Contains("another run"));
  fs::remove_all(job.versions);
  new_run = slime::PublishRun(job.versions, job.weights, {"layer.1", "", "layer.2"});
  CHECK_THAT(Text(follower->Step()), Contains("version 000001 there is not the one"));

  // Still refused after a restart, and when the folder no longer shows the difference.
  follower.reset();
  follower = job.Follow(false);
  for (const uint64_t version : {1, 2}) {
    fs::remove_all(job.PathOf(version));
    CHECK_THAT(Text(follower->Step()), Contains("another run"));
  }
  CHECK(follower->view().version == 2);
  CHECK(slime::Load(job.local) == old_run[2]);
  CHECK(job.ready);  // with the weights it has

  job.weights = new_run[3];
  job.PublishFull(4);
  REQUIRE(follower->Step().ok());
  CHECK(slime::Load(job.local) == job.weights);
  job.Publish(5);
  REQUIRE(follower->Step().ok());
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("a checkpoint that replaces the local one is loaded and followed", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  for (const uint64_t version : {1, 2}) job.Publish(version);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 2);
  fs::remove_all(job.versions);
  fs::remove_all(job.local);
  job.weights = slime::RandomWeights(2);
  slime::WriteBase(job.local, job.weights);
  for (const uint64_t version : {1, 2}) job.Publish(version, 2);
  job.engine.Look();
  REQUIRE(follower->Step().ok());
  CHECK(slime::Load(job.local) == job.weights);
  CHECK(job.engine.Look() ==
        Calls{"pause", "load 0", "tell 0", "resume 0", "pause", "load 2", "tell 2", "resume 2"});
}

TEST_CASE("later versions that the previous run left are not applied to the new run",
          "[follower]") {
  Job job;
  const auto follower = job.Follow(false);
  job.Publish(1);
  REQUIRE(follower->Step().ok());
  const Weights held = job.weights;
  job.PublishFull(3);
  fs::remove_all(job.PathOf(1));
  job.weights = slime::RandomWeights(2);
  job.Publish(1, 2);
  fs::last_write_time(job.IndexOf(3), fs::last_write_time(job.IndexOf(1)) - std::chrono::hours(1));
  CHECK_THAT(Text(follower->Step()), Contains("another run"));
  CHECK(slime::Load(job.local) == held);
}

TEST_CASE("a full checkpoint that the previous run left is not applied to the new run",
          "[follower]") {
  Job job;
  auto follower = job.Follow(false);
  const Weights base = job.weights;
  for (const uint64_t version : {1, 2}) job.Publish(version);
  REQUIRE(follower->Step().ok());
  const Weights held = job.weights;
  for (const uint64_t version : {3, 4}) job.Publish(version);
  job.PublishFull(5);
  // A run from the same base has published its first version only, after all these files.
  for (const uint64_t version : {1, 2}) fs::remove_all(job.PathOf(version));
  job.weights = base;
  job.Publish(1, 2);
  const auto later = fs::last_write_time(job.IndexOf(5)) + std::chrono::seconds(5);
  fs::last_write_time(job.IndexOf(1), later);
  CHECK_THAT(Text(follower->Step()), Contains("another run"));
  CHECK(slime::Load(job.local) == held);
  // The version that shows it may be removed, and the receiver restarted.
  fs::remove_all(job.PathOf(1));
  follower.reset();
  follower = job.Follow(false);
  CHECK_THAT(Text(follower->Step()), Contains("another run"));
  CHECK(slime::Load(job.local) == held);

  job.PublishFull(6);
  fs::last_write_time(job.IndexOf(6), later + std::chrono::seconds(1));
  REQUIRE(follower->Step().ok());
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("an engine that was restarted loads again", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  job.engine.Look();
  REQUIRE(follower->Step().ok());
  CHECK(job.engine.Look().empty());  // it is not checked at every step
  job.clock.now += std::chrono::seconds(6);
  REQUIRE(follower->Step().ok());
  CHECK(job.engine.Look() == Calls{"check"});
  job.engine.answers["check"] = DeadlineExceededError("it is slow");
  job.clock.now += std::chrono::seconds(6);
  REQUIRE(follower->Step().ok());
  CHECK(job.ready);
  job.engine.answers["check"] = FailedPreconditionError("it says default");
  job.clock.now += std::chrono::seconds(6);
  CHECK_FALSE(follower->Step().ok());
  CHECK_FALSE(job.ready);
  job.engine.answers.clear();
  job.engine.Look();
  REQUIRE(follower->Step().ok());
  CHECK(job.engine.Look() == Calls{"connect", "pause", "load 0", "tell 0", "resume 0"});
}

TEST_CASE("an engine whose folder stays unreadable runs on but is not ready", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  job.clock.now += std::chrono::hours(1);  // no new version is no failure
  REQUIRE(follower->Step().ok());
  CHECK(job.ready);
  CHECK(follower->view().seconds_since_version >= 3600);
  fs::rename(job.versions, job.versions + " unmounted");
  CHECK_FALSE(follower->Step().ok());
  job.clock.now += limits::kStaleAfterDefault - std::chrono::seconds(1);
  CHECK_FALSE(follower->Step().ok());
  CHECK(job.ready);
  job.clock.now += std::chrono::seconds(1);
  CHECK_FALSE(follower->Step().ok());
  CHECK_FALSE(job.ready);
  CHECK_FALSE(job.engine.paused);
  CHECK(follower->view().seconds_failing == 30);
  fs::rename(job.versions + " unmounted", job.versions);
  job.Publish(1);
  REQUIRE(follower->Step().ok());
  CHECK(job.ready);
  CHECK(follower->view().seconds_failing == 0);
  CHECK(follower->view().seconds_since_version == 0);
}

TEST_CASE("a receiver that stops does not pause its engine", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  job.Publish(1);
  job.engine.Look();
  follower->Stop();
  CHECK(follower->Step().ok());
  CHECK(job.engine.Look().empty());
}

TEST_CASE("a drained receiver takes no version but completes the load that it began",
          "[follower]") {
  Job job;
  const auto follower = job.Follow();
  job.Publish(1);
  job.engine.answers["load 1"] = UnavailableError("a worker died");
  CHECK_FALSE(follower->Step().ok());
  follower->SetDrained(true);
  job.Publish(2);
  job.engine.answers.clear();
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 1);
  CHECK(follower->view().version == 1);
  CHECK(follower->view().stage == "idle");
  follower->SetDrained(false);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 2);
}

TEST_CASE("a drained receiver does not pause an engine that runs", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  job.Publish(1);
  job.engine.answers["pause"] = UnavailableError("it is busy");
  CHECK_FALSE(follower->Step().ok());
  REQUIRE(follower->view().version == 1);
  job.engine.answers.clear();
  job.engine.Look();
  follower->SetDrained(true);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 0);
  CHECK_FALSE(job.engine.paused);
  follower->SetDrained(false);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 1);
}

TEST_CASE("a checkpoint that is cut under the receiver is an error until it is restored",
          "[follower]") {
  Job job;
  const auto follower = job.Follow(/*with_engine=*/false);
  REQUIRE(follower->Step().ok());
  std::string file;
  for (const auto& entry : fs::directory_iterator(job.local)) {
    if (entry.path().extension() == ".safetensors") file = entry.path();
  }
  REQUIRE_FALSE(file.empty());
  fs::copy_file(file, file + ".copy");
  fs::resize_file(file, 0);
  job.Publish(1);
  const Status cut = follower->Step();
  CHECK(absl::IsDataLoss(cut));
  CHECK_THAT(Text(cut), Contains(file));
  CHECK_FALSE(follower->Step().ok());
  fs::rename(file + ".copy", file);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().version == 1);
}

}  // namespace dws
