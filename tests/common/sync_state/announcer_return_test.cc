// The receivers that waits include when some return, are removed or lose their stream, and which of
// their reports are kept.
#include <catch2/catch.hpp>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "common/model/limits.h"
#include "common/sync_state/announcer_state.h"

namespace dws {
namespace {

using Names = std::vector<std::string>;

constexpr StreamId kStream{.incarnation = 1, .id_hi = 0, .id_lo = 11};
constexpr WaitCondition kAll{.policy = WaitCondition::Policy::kAll};

TimePoint At(int seconds) { return TimePoint(std::chrono::seconds(seconds)); }

// A sender that leaves laggards out after 10 s.
struct Sender {
  Sender() { state.StartStream(kStream); }

  ConnectionId Connect(const std::string& receiver, int at_seconds = 0) {
    const ConnectionId connection(++last_connection);
    REQUIRE(state.Connect(receiver, connection, At(at_seconds)).ok());
    return connection;
  }
  void Commit(ConnectionId connection, uint64_t version, int at_seconds) {
    REQUIRE(state.OnCommitted(connection, kStream, {.version = WeightVersion(version)},
                              At(at_seconds)));
  }
  bool Met(uint64_t version, int at_seconds) const {
    return AnnouncerState::Met(state.Tally(WeightVersion(version), At(at_seconds)), kAll);
  }

  AnnouncerState state{std::chrono::seconds(10)};
  uint64_t last_connection = 0;
};

}  // namespace

TEST_CASE("a receiver that refuses is waited for between its connections", "[protocol]") {
  Sender sender;
  const ConnectionId good = sender.Connect("good");
  sender.Connect("away");
  ConnectionId refusing = sender.Connect("refuses");
  REQUIRE(sender.state.OnNack(refusing, sender.state.NextNonce(refusing, true), kStream, "older"));
  sender.Commit(good, 1, 0);
  sender.state.Disconnect(ConnectionId(2), At(0));  // it has said nothing: absent at once
  // It ends its stream and is back after the longest delay, until it is left out like a laggard.
  sender.state.Disconnect(refusing, At(6));
  for (const int now : {6, 7, 8}) {
    CHECK_FALSE(sender.Met(1, now));
    const WaitTally tally = sender.state.Tally(WeightVersion(1), At(now));
    CHECK(tally.missing == Names{"refuses"});
    CHECK(tally.absent == Names{"away"});
  }
  refusing = sender.Connect("refuses", 8);
  CHECK_FALSE(sender.Met(1, 8));
  sender.state.Disconnect(refusing, At(9));
  CHECK_FALSE(sender.Met(1, 9));
  CHECK(sender.Met(1, 10));
  CHECK(sender.state.Tally(WeightVersion(1), At(10)).left_out == Names{"refuses"});
  // It did not come back.
  CHECK(sender.Met(1, 13));
  CHECK(sender.state.Tally(WeightVersion(1), At(13)).absent == Names{"away", "refuses"});
}

TEST_CASE("a receiver that refuses a later version is not waited for with an earlier one",
          "[protocol]") {
  Sender sender;
  sender.Commit(sender.Connect("good"), 2, 0);
  const ConnectionId refusing = sender.Connect("refuses");
  sender.Commit(refusing, 1, 0);
  REQUIRE(sender.state.OnNack(refusing, sender.state.NextNonce(refusing, true), kStream, "bad"));
  sender.state.Disconnect(refusing, At(1));
  CHECK(sender.Met(1, 1));
  CHECK_FALSE(sender.Met(2, 1));
  CHECK(sender.Met(2, 5));
}

TEST_CASE("the laggard time of an awaited receiver starts when it is back", "[protocol]") {
  Sender sender;
  sender.state.Remember("awaited", /*awaited=*/true);
  sender.Commit(sender.Connect("a"), 1, 0);
  CHECK_FALSE(sender.Met(1, 100));  // it is awaited, however long it is behind the others
  const ConnectionId back = sender.Connect("awaited", 100);
  CHECK_FALSE(sender.Met(1, 100));
  CHECK_FALSE(sender.Met(1, 109));
  CHECK(sender.state.Tally(WeightVersion(1), At(109)).missing == Names{"awaited"});
  CHECK(sender.Met(1, 110));
  // Since it was back, it is no longer awaited: another connection does not restart the time.
  sender.state.Disconnect(back);
  sender.Connect("awaited", 200);
  CHECK(sender.Met(1, 200));
}

TEST_CASE("commits of a forgotten stream do not count when it starts again", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  sender.Commit(connection, 7, 0);
  sender.state.ForgetStream();
  CHECK_FALSE(sender.state.stream().has_value());
  CHECK_FALSE(sender.Met(1, 0));
  CHECK_FALSE(sender.state.OnCommitted(connection, kStream, {.version = WeightVersion(7)}, At(1)));
  sender.state.StartStream(kStream);
  CHECK_FALSE(sender.Met(1, 1));
  CHECK_FALSE(sender.state.receivers().at("a").committed.has_value());
}

TEST_CASE("a late or repeated report of a commit does not change its details", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  const auto report = [&](uint64_t version, double pause_seconds) {
    REQUIRE(sender.state.OnCommitted(
        connection, kStream, {.version = WeightVersion(version), .pause_seconds = pause_seconds},
        At(1)));
    return sender.state.receivers().at("a").last_commit.pause_seconds;
  };
  CHECK(report(5, 0.25) == 0.25);
  CHECK(report(4, 0.5) == 0.25);  // late
  CHECK(report(5, 0) == 0.25);    // again, after a reconnect
}

TEST_CASE("past the maximum an awaited receiver is removed last", "[protocol]") {
  Sender sender;
  sender.state.Remember("a awaited", /*awaited=*/true);
  sender.state.Remember("z absent", /*awaited=*/false);
  CHECK_FALSE(sender.state.GivesWay("one more").has_value());
  for (size_t i = 2; i < limits::kReceiversMax; ++i) sender.Connect("r" + std::to_string(i));
  CHECK(sender.state.GivesWay("one more") == "z absent");
  CHECK_FALSE(sender.state.GivesWay("r5").has_value());
  sender.Connect("one more");
  CHECK(sender.state.receivers().contains("a awaited"));
  CHECK_FALSE(sender.state.receivers().contains("z absent"));
  CHECK(sender.state.GivesWay("another") == "a awaited");
  sender.Connect("another");
  CHECK_FALSE(sender.state.GivesWay("the last").has_value());
}

TEST_CASE("figures that no commit can have count as nothing", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  uint64_t version = 0;
  for (const double seconds : {-1.0, 1e300, nan, std::numeric_limits<double>::infinity()}) {
    sender.state.OnCommitted(connection, kStream,
                             {.version = WeightVersion(++version),
                              .pause_seconds = seconds,
                              .stage_seconds = seconds,
                              .fetched_bytes = UINT64_MAX},
                             At(1));
    const AcknowledgedCommit& kept = sender.state.receivers().at("a").last_commit;
    CHECK(kept.version == WeightVersion(version));
    CHECK(kept.pause_seconds == 0);
    CHECK(kept.stage_seconds == 0);
    CHECK(kept.fetched_bytes == 0);
  }
}

TEST_CASE("a tally names those that are absent since they were connected", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a", 1);
  sender.state.Remember("b", false);  // it was absent before this process
  sender.state.Remember("c", true);
  CHECK(sender.state.Tally(WeightVersion(1), At(1)).absent.empty());
  sender.state.Disconnect(connection, At(5));
  CHECK(sender.state.Tally(WeightVersion(1), At(9)).absent == Names{"a"});
  CHECK(sender.state.receivers().at("a").absent_since == At(5));
  sender.Connect("a", 10);
  CHECK(sender.state.Tally(WeightVersion(1), At(11)).absent.empty());
}

TEST_CASE("a new stream forgets why versions of the one before were refused", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  REQUIRE(sender.state.OnNack(connection, sender.state.NextNonce(connection, true), kStream,
                              "it is old"));
  sender.state.StartStream({.incarnation = 2, .id_hi = 0, .id_lo = 22});
  CHECK(sender.state.receivers().at("a").last_error.empty());
  CHECK(sender.state.receivers().at("a").nacks == 1);
}

}  // namespace dws
