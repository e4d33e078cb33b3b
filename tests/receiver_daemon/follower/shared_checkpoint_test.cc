// A follower beside another program of slime's format that pulls versions into the same checkpoint.
#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <memory>
#include <string>

#include "tests/fakes/eventually.h"
#include "tests/receiver_daemon/follower/follower_case.h"

namespace dws {
namespace {

// Does what the other program would do: writes the weights of a version into the files, then its
// state.
void PullTo(Job& job, uint64_t version) {
  const auto lock = job.files.Lock(job.local + "/.weight_sync/lock");
  REQUIRE(lock.ok());
  const auto checkpoint = safetensors::Checkpoint::Open(job.local, FileAccess::kWritable);
  REQUIRE(checkpoint.ok());
  for (const safetensors::CheckpointTensor& tensor : checkpoint->tensors()) {
    const auto& bytes = job.weights.at(tensor.name);
    std::copy(bytes.begin(), bytes.end(), checkpoint->Writable(tensor).begin());
  }
  REQUIRE(checkpoint->Sync().ok());
  REQUIRE(slime::WriteState(job.files, job.local, version).ok());
}

}  // namespace

TEST_CASE("another program may lock the checkpoint between two looks", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  for (const uint64_t version : {1, 2}) {
    job.Publish(version);
    {
      const auto lock = job.files.Lock(job.local + "/.weight_sync/lock");
      REQUIRE(lock.ok());
      const Status locked = follower->Step();
      CHECK(absl::IsUnavailable(locked));
      CHECK_THAT(Text(locked),
                 Contains("is locked by process " + std::to_string(::getpid()) + " ("));
      CHECK(follower->view().version == version - 1);
    }
    REQUIRE(follower->Step().ok());
    CHECK(slime::Load(job.local) == job.weights);
  }
}

TEST_CASE("what another program pulled is loaded and followed from there", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  job.Publish(1);
  REQUIRE(follower->Step().ok());
  REQUIRE(follower->Step().ok());
  job.Publish(2);
  PullTo(job, 2);
  job.engine.Look();
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().version == 2);
  CHECK(follower->view().applied == 1);
  CHECK(job.engine.Look() == Calls{"pause", "load 2", "tell 2", "resume 2"});
  job.Publish(3);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 3);
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("an engine loads nothing while another program has the lock", "[follower]") {
  Job job;
  const std::string flag = job.folder.File("running");
  const std::string go = job.folder.File("go");
  job.before_read =
      shared::VisibilityHook({"/bin/sh", "-c",
                              "test -e " + go + " || { touch " + flag + "; until test -e " + go +
                                  "; do sleep 0.01; done; }"},
                             job.versions);
  dws::testing::WriteText(go, "");
  const auto follower = job.Follow();
  REQUIRE(follower->Step().ok());
  job.Publish(1);
  job.engine.answers["pause"] = DeadlineExceededError("requests are pending");
  CHECK_FALSE(follower->Step().ok());
  CHECK(follower->view().version == 1);
  job.engine.answers.clear();
  job.engine.Look();

  // The other program takes the lock while the command before the look runs.
  std::filesystem::remove(go);
  std::unique_ptr<FileLock> lock;
  auto other = std::async(std::launch::async, [&] {
    const bool running = Eventually([&] { return std::filesystem::exists(flag); });
    auto taken = job.files.Lock(job.local + "/.weight_sync/lock");
    if (taken.ok()) lock = *std::move(taken);
    dws::testing::WriteText(go, "");
    return running;
  });
  const Status locked = follower->Step();
  REQUIRE(other.get());
  REQUIRE(lock != nullptr);
  CHECK_THAT(Text(locked), Contains("is locked by process"));
  CHECK(job.engine.Look().empty());
  lock.reset();
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 1);
}

TEST_CASE("a verify takes the lock and says who has it", "[follower]") {
  Job job;
  const auto follower = job.Follow();
  const auto verify = [&] {
    std::promise<Status> done;
    follower->RequestVerify([&done](const Status& status) { done.set_value(status); });
    return done.get_future().get();
  };
  follower->Start();
  CHECK(verify().ok());
  std::unique_ptr<FileLock> lock;
  CHECK(Eventually([&] {
    auto taken = job.files.Lock(job.local + "/.weight_sync/lock");
    if (taken.ok()) lock = *std::move(taken);
    return lock != nullptr;
  }));
  CHECK_THAT(Text(verify()), Contains("is locked by process"));
  lock.reset();
  CHECK(verify().ok());
  follower->Stop();
}

}  // namespace dws
