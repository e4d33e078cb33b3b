// What a trainer gets when a wait ends: in words, and in the details of the error.
#include "sender_daemon/serve/wait_outcome.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "common/model/limits.h"
#include "proto/trainer.pb.h"

namespace dws {
namespace {

constexpr WaitCondition kAll{.policy = WaitCondition::Policy::kAll};
constexpr WaitCondition kThree{.policy = WaitCondition::Policy::kQuorum, .quorum = 3};

TEST_CASE("a failed wait reports how many have committed and the versions of the others",
          "[wait]") {
  WaitOutcome outcome{.committed = {"a", "b"}};
  outcome.missing.push_back({.receiver_id = "c",
                             .committed = WeightVersion(4),
                             .staged = WeightVersion(5),
                             .behind = std::chrono::seconds(75),
                             .last_error = "no space"});
  CHECK(DescribeUnmet(outcome, kThree) ==
        "2 of 3 connected receivers have committed it, expected 3: 'c' is at version 4, has staged "
        "5, behind for 75 s (no space)");
  outcome.left_out.push_back({.receiver_id = "d", .behind = std::chrono::seconds(400)});
  CHECK(DescribeUnmet(outcome, kAll) ==
        "2 of 4 connected receivers have committed it, expected 3: 'c' is at version 4, has staged "
        "5, behind for 75 s (no space); left out: 'd' has committed no version of this stream, "
        "behind for 400 s");
}

TEST_CASE("a failed wait says of absent receivers since when", "[wait]") {
  CHECK(DescribeUnmet({}, kAll) == "no receiver is connected");
  WaitOutcome outcome;
  outcome.absent.push_back(
      {.receiver_id = "a", .committed = WeightVersion(4), .absent = std::chrono::seconds(75)});
  outcome.absent.push_back({.receiver_id = "b", .absent = std::chrono::seconds(3)});
  CHECK(DescribeUnmet(outcome, kAll) ==
        "no receiver is connected; not connected: 'a' for 75 s, it was at version 4, 'b' for 3 s");
  outcome.awaited.push_back(Awaited("c"));
  outcome.missing.push_back({.receiver_id = "d", .last_error = "it refuses this sender: old"});
  CHECK(DescribeUnmet(outcome, kAll) ==
        "0 of 1 connected receivers have committed it, expected 2: 'd' has committed no version of "
        "this stream (it refuses this sender: old); awaited: 'c' (not back since the sender's "
        "restart; `dwsctl evict --receiver` removes it); not connected: 'a' for 75 s, it was at "
        "version 4, 'b' for 3 s");
}

TEST_CASE("only some of many receivers are named and those with an error come first", "[wait]") {
  WaitOutcome outcome;
  for (int i = 0; i < 100; ++i) outcome.missing.push_back({.receiver_id = std::to_string(i)});
  outcome.missing[60].last_error = "broken";
  const std::string text = DescribeUnmet(outcome, kAll);
  CHECK_THAT(text, Catch::Contains(": '60' has committed no version of this stream (broken), '0'"));
  CHECK_THAT(text, Catch::EndsWith(" and 84 more"));
}

TEST_CASE("an error's details are bounded whatever the receivers' names", "[wait]") {
  WaitOutcome outcome;
  for (int i = 0; i < 100; ++i) {
    const std::string id = std::string(limits::kIdBytesMax - 2, 'x') + std::to_string(i);
    outcome.committed.push_back(id);
    outcome.missing.push_back({.receiver_id = id, .last_error = std::string(4096, 'e')});
    outcome.left_out.push_back({.receiver_id = id});
  }
  const std::string details = ShortReply(outcome);
  CHECK(details.size() <= limits::kWaitDetailsBytesMax);
  v1::WaitReply reply;
  REQUIRE(reply.ParseFromString(details));
  CHECK(reply.missing_size() > 4);
  CHECK(reply.committed_count() == 100);
  CHECK(reply.present_count() == 300);
  FillReply(outcome, reply);
  CHECK(reply.left_out_size() >= 100);
}

}  // namespace
}  // namespace dws
