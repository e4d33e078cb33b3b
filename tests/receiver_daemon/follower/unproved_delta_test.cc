// A follower whose next version does not prove its base.
#include "receiver_daemon/follower/slime_follower.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "tests/receiver_daemon/follower/follower_case.h"

namespace dws {

TEST_CASE("a delta whose base was removed is refused and a full checkpoint is taken",
          "[follower]") {
  Job job;
  auto follower = job.Follow();
  job.Publish(1);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 1);
  const Weights held = job.weights;
  fs::remove_all(job.PathOf(1));
  REQUIRE(follower->Step().ok());
  job.Publish(2);
  const bool restarted = GENERATE(false, true);
  if (restarted) {
    follower.reset();
    follower = job.Follow();
  }
  CHECK_THAT(Text(follower->Step()), Contains("weight_v000002") && Contains("nothing proves"));
  CHECK_THAT(Text(follower->Step()), Contains("nothing proves"));
  CHECK(follower->view().unproved);
  CHECK(follower->view().version == 1);
  CHECK(follower->view().lag() == 1);
  CHECK(job.ready);  // with the weights it has
  job.clock.now += limits::kStaleAfterDefault;
  CHECK_FALSE(follower->Step().ok());
  CHECK_FALSE(job.ready);
  CHECK_THAT(job.reason, Contains("more than 30 s") && Contains("nothing proves"));
  CHECK(slime::Load(job.local) == held);

  job.PublishFull(3);
  REQUIRE(follower->Step().ok());
  CHECK(follower->view().loaded == 3);
  CHECK_FALSE(follower->view().unproved);
  CHECK(follower->view().proof == slime::BaseProof::kNotNeeded);
  CHECK(job.ready);
  CHECK(slime::Load(job.local) == job.weights);
}

TEST_CASE("a version that nothing proves is reported only as long as it is the reason",
          "[follower]") {
  Job job;
  const auto follower = job.Follow();
  job.Publish(1);
  REQUIRE(follower->Step().ok());
  fs::remove_all(job.PathOf(1));
  REQUIRE(follower->Step().ok());
  job.Publish(2);
  REQUIRE_FALSE(follower->Step().ok());
  REQUIRE(follower->view().unproved);

  if (GENERATE(false, true)) {
    fs::rename(job.versions, job.versions + " unmounted");
  } else {
    job.Publish(3);
    fs::remove_all(job.PathOf(2));
  }
  CHECK_THAT(Text(follower->Step()), !Contains("nothing proves"));
  CHECK_FALSE(follower->view().trouble.empty());
  CHECK_FALSE(follower->view().unproved);
}

TEST_CASE("the next version is followed after the loaded one is removed if no proof is wanted",
          "[follower]") {
  Job job;
  job.proof = slime::ProofRule::kNone;
  auto follower = job.Follow();
  for (const uint64_t version : {1, 2, 3}) {
    job.Publish(version);
    REQUIRE(follower->Step().ok());
    CHECK(follower->view().loaded == version);
    fs::remove_all(job.PathOf(version));
    REQUIRE(follower->Step().ok());
  }
  CHECK(follower->view().proof == slime::BaseProof::kNone);
  follower.reset();
  follower = job.Follow();
  job.Publish(4);
  REQUIRE(follower->Step().ok());
  CHECK(slime::Load(job.local) == job.weights);
}

}  // namespace dws
