// A follower that waits for a version whose files are not all there.
#include "receiver_daemon/follower/slime_follower.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "tests/receiver_daemon/follower/follower_case.h"

namespace dws {

TEST_CASE("a half removed version is waited for and then reported", "[follower]") {
  Job job;
  auto follower = job.Follow(false);
  for (const uint64_t version : {1, 2}) job.Publish(version);
  REQUIRE(follower->Step().ok());
  // Version 2 is written again, and one of its shards is not there yet.
  fs::copy(job.PathOf(2), job.folder.File("again"));
  fs::remove_all(job.PathOf(2));
  fs::rename(job.folder.File("again"), job.PathOf(2));
  const std::string shard = (*job.files.List(job.PathOf(2)))[0];
  fs::rename(job.PathOf(2) + "/" + shard, job.folder.File("shard"));
  job.Publish(3);
  CHECK(follower->Step().ok());
  CHECK(follower->view().version == 2);
  job.clock.now += std::chrono::minutes(6);
  CHECK_THAT(Text(follower->Step()), Contains("version 000002 is not complete") && Contains(shard));
  fs::rename(job.folder.File("shard"), job.PathOf(2) + "/" + shard);
  REQUIRE(follower->Step().ok());
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("a version that lacks files is waited for and then the receiver is not ready",
          "[follower]") {
  Job job;
  const auto follower = job.Follow(false);
  job.Publish(1);
  const std::string shard = (*job.files.List(job.PathOf(1)))[0];
  const bool lacks_index = GENERATE(false, true);
  const std::string lacking = lacks_index ? safetensors::kIndexFile : shard;
  INFO(lacking);
  fs::rename(job.PathOf(1) + "/" + lacking, job.folder.File("aside"));
  const std::string missing = lacks_index ? "it is not published yet" : shard;
  CHECK(follower->Step().ok());
  CHECK(job.ready);
  CHECK_THAT(follower->view().waits_for,
             Contains("version 000001 is not complete") && Contains(missing));
  CHECK(follower->view().lag() == 1);
  job.clock.now += limits::kStaleAfterDefault - std::chrono::seconds(1);
  CHECK(follower->Step().ok());
  CHECK(job.ready);
  job.clock.now += std::chrono::seconds(1);
  follower->ShowReadiness();  // time alone makes it not ready
  CHECK_FALSE(job.ready);
  CHECK_THAT(job.reason,
             Contains("for more than 30 s") && Contains("weight_v000001") && Contains(missing));
  CHECK_THAT(Text(follower->Step()), Contains("is not complete") && Contains(missing));
  CHECK(follower->view().stale);
  CHECK(follower->view().seconds_failing == 30);
  fs::rename(job.folder.File("aside"), job.PathOf(1) + "/" + lacking);
  CHECK(follower->Step().ok());
  CHECK(follower->view().version == 1);
  CHECK(follower->view().waits_for.empty());
  CHECK(job.ready);
}

TEST_CASE("a version that is still being written is waited for as long as its files change",
          "[follower]") {
  Job job;
  const auto follower = job.Follow(false);
  fs::create_directories(job.PathOf(1));
  // A writer may make the folder long before it writes there.
  CHECK(follower->Step().ok());
  job.clock.now += std::chrono::minutes(4);
  CHECK(follower->Step().ok());
  CHECK(job.ready);
  for (int file = 0; file < 5; ++file) {
    dws::testing::WriteText(job.PathOf(1) + "/part" + std::to_string(file), "x");
    CHECK(follower->Step().ok());
    job.clock.now += limits::kStaleAfterDefault - std::chrono::seconds(1);
    CHECK(follower->Step().ok());
    CHECK(job.ready);
  }
  job.clock.now += std::chrono::seconds(1);
  CHECK_FALSE(follower->Step().ok());
  CHECK_FALSE(job.ready);
}

TEST_CASE("a version folder that stays empty is reported after minutes", "[follower]") {
  Job job;
  const auto follower = job.Follow(false);
  fs::create_directories(job.PathOf(1));
  CHECK(follower->Step().ok());
  CHECK_THAT(follower->view().waits_for, Contains("weight_v000001"));
  job.clock.now += std::chrono::minutes(5);
  CHECK_THAT(Text(follower->Step()), Contains("version 000001 is not complete"));
}

}  // namespace dws
