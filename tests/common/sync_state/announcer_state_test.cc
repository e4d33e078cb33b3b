#include "common/sync_state/announcer_state.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "common/model/limits.h"

namespace dws {
namespace {

using Policy = WaitCondition::Policy;
using Names = std::vector<std::string>;

constexpr StreamId kStream{.incarnation = 1, .id_hi = 0, .id_lo = 11};
constexpr StreamId kOtherStream{.incarnation = 2, .id_hi = 0, .id_lo = 22};
constexpr WaitCondition kAll{.policy = Policy::kAll};
constexpr WaitCondition kAny{.policy = Policy::kAny};

WaitCondition Quorum(uint32_t quorum) { return {.policy = Policy::kQuorum, .quorum = quorum}; }
WeightVersion Version(uint64_t version) { return WeightVersion(version); }
TimePoint At(int seconds) { return TimePoint(std::chrono::seconds(seconds)); }

// A sender with a stream, and short calls for the actions of receivers.
struct Sender {
  explicit Sender(int laggard_after_seconds = 0)
      : state(std::chrono::seconds(laggard_after_seconds)) {
    state.StartStream(kStream);
  }

  ConnectionId Connect(const std::string& receiver, int at_seconds = 0) {
    const ConnectionId connection(++last_connection);
    REQUIRE(state.Connect(receiver, connection, At(at_seconds)).ok());
    return connection;
  }
  Nonce Announce(ConnectionId connection) { return state.NextNonce(connection, true); }
  bool Commit(ConnectionId connection, uint64_t version, int at_seconds = 0) {
    return state.OnCommitted(connection, kStream, {.version = Version(version)}, At(at_seconds));
  }
  std::optional<Names> Met(WeightVersion version, const WaitCondition& condition,
                           TimePoint now = {}) const {
    const WaitTally tally = state.Tally(version, now);
    CHECK(state.Met(version, condition, now) == AnnouncerState::Met(tally, condition));
    return AnnouncerState::Met(tally, condition) ? std::optional(tally.committed) : std::nullopt;
  }
  const auto& receiver(const std::string& id) const { return state.receivers().at(id); }

  AnnouncerState state;
  uint64_t last_connection = 0;
};

}  // namespace

TEST_CASE("every message down a connection has a new nonce starting at 1", "[protocol]") {
  Sender sender;
  const ConnectionId first = sender.Connect("a");
  const ConnectionId second = sender.Connect("b");
  CHECK(sender.state.NextNonce(first, true) == Nonce(1));
  CHECK(sender.state.NextNonce(first, false) == Nonce(2));
  CHECK(sender.state.NextNonce(second, true) == Nonce(1));
  CHECK(sender.state.NextNonce(first, true) == Nonce(3));
}

TEST_CASE("STAGED counts when it answers the last announcement", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  const Nonce nonce = sender.Announce(connection);
  CHECK(sender.state.OnStaged(connection, nonce, kStream, Version(3)));
  CHECK(sender.receiver("a").staged == Version(3));
}

TEST_CASE("STAGED with the nonce of an older announcement is ignored", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  const Nonce old = sender.Announce(connection);
  sender.Announce(connection);
  CHECK_FALSE(sender.state.OnStaged(connection, old, kStream, Version(3)));
  CHECK_FALSE(sender.receiver("a").staged.has_value());
}

TEST_CASE("other messages do not change the nonce that STAGED must have", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  const Nonce announced = sender.Announce(connection);
  const Nonce other = sender.state.NextNonce(connection, false);
  CHECK_FALSE(sender.state.OnStaged(connection, other, kStream, Version(3)));
  CHECK(sender.state.OnStaged(connection, announced, kStream, Version(3)));
}

TEST_CASE("a NACK counts when it answers the last announcement", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  CHECK(sender.state.OnNack(connection, sender.Announce(connection), kStream, "digest differs"));
  CHECK(sender.receiver("a").last_error == "digest differs");
}

TEST_CASE("a NACK with another nonce is ignored", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  const Nonce old = sender.Announce(connection);
  sender.Announce(connection);
  CHECK_FALSE(sender.state.OnNack(connection, old, kStream, "digest differs"));
  CHECK(sender.receiver("a").last_error.empty());
}

TEST_CASE("a receiver that NACKs keeps the versions it had", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  sender.Commit(connection, 4);
  REQUIRE(sender.state.OnNack(connection, sender.Announce(connection), kStream, "bad"));
  CHECK(sender.receiver("a").committed == Version(4));
  CHECK(sender.Met(Version(4), kAll) == Names{"a"});
  CHECK_FALSE(sender.Met(Version(5), kAll).has_value());
}

TEST_CASE("a NACK's message is kept up to its limit", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  const std::string error(limits::kErrorBytesMax + 1, 'e');
  REQUIRE(sender.state.OnNack(connection, sender.Announce(connection), kStream, error));
  CHECK(sender.receiver("a").last_error.size() == limits::kErrorBytesMax);
}

TEST_CASE("a commit clears the error of an earlier NACK", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  REQUIRE(sender.state.OnNack(connection, sender.Announce(connection), kStream, "bad"));
  sender.Commit(connection, 1);
  CHECK(sender.receiver("a").last_error.empty());
}

TEST_CASE("COMMITTED needs no nonce and is counted on every connection", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  CHECK(sender.Commit(connection, 2));  // nothing was announced on this connection
  CHECK(sender.receiver("a").committed == Version(2));
}

TEST_CASE("a late COMMITTED of an older version does not lower the committed version",
          "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  CHECK(sender.Commit(connection, 5));
  CHECK(sender.Commit(connection, 3));  // accepted, not an error
  CHECK(sender.receiver("a").committed == Version(5));
  CHECK(sender.Met(Version(5), kAll) == Names{"a"});
  CHECK(sender.Met(Version(2), kAll) == Names{"a"});
}

TEST_CASE("the report of the last commit is kept", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  const AcknowledgedCommit report{.version = Version(2), .pause_seconds = 0.5, .fetched_bytes = 99};
  REQUIRE(sender.state.OnCommitted(connection, kStream, report, At(0)));
  CHECK(sender.receiver("a").last_commit.version == Version(2));
  CHECK(sender.receiver("a").last_commit.pause_seconds == 0.5);
  CHECK(sender.receiver("a").last_commit.fetched_bytes == 99);
}

TEST_CASE("a new connection clears the nonce and keeps the versions", "[protocol]") {
  Sender sender;
  const ConnectionId old = sender.Connect("a");
  const Nonce nonce = sender.Announce(old);
  REQUIRE(sender.state.OnStaged(old, nonce, kStream, Version(3)));
  sender.Commit(old, 2);
  sender.state.Disconnect(old);

  const ConnectionId fresh = sender.Connect("a");
  CHECK(sender.receiver("a").committed == Version(2));
  CHECK(sender.receiver("a").staged == Version(3));
  CHECK_FALSE(sender.state.OnStaged(fresh, nonce, kStream, Version(4)));
  CHECK(sender.Announce(fresh) == Nonce(1));
}

TEST_CASE("a second connection of a receiver fences the first", "[protocol]") {
  Sender sender;
  const ConnectionId old = sender.Connect("a");
  const auto fenced = sender.state.Connect("a", ConnectionId(77));
  REQUIRE(fenced.ok());
  CHECK(*fenced == old);
  CHECK(sender.receiver("a").connection == ConnectionId(77));
}

TEST_CASE("a first connection fences no other", "[protocol]") {
  Sender sender;
  const auto fenced = sender.state.Connect("a", ConnectionId(1));
  REQUIRE(fenced.ok());
  CHECK_FALSE(fenced->has_value());
}

TEST_CASE("messages of a fenced connection are ignored", "[protocol]") {
  Sender sender;
  const ConnectionId old = sender.Connect("a");
  const Nonce nonce = sender.Announce(old);
  sender.Connect("a");
  CHECK_FALSE(sender.state.OnStaged(old, nonce, kStream, Version(1)));
  CHECK_FALSE(sender.Commit(old, 1));
  CHECK_FALSE(sender.state.OnNack(old, nonce, kStream, "bad"));
  CHECK_FALSE(sender.receiver("a").committed.has_value());
  CHECK(sender.state.NextNonce(old, true) == Nonce(0));
}

TEST_CASE("a fenced connection that hangs up late does not disconnect its receiver", "[protocol]") {
  Sender sender;
  const ConnectionId old = sender.Connect("a");
  const ConnectionId fresh = sender.Connect("a");
  sender.state.Disconnect(old);
  CHECK(sender.receiver("a").connection == fresh);
}

TEST_CASE("a receiver that disconnects is known but absent", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  sender.state.Disconnect(connection);
  sender.state.Disconnect(connection);  // the second time changes nothing
  REQUIRE(sender.state.receivers().contains("a"));
  CHECK_FALSE(sender.receiver("a").connection.has_value());
}

TEST_CASE("a newly published version discards commits above it and commits of other weights",
          "[protocol]") {
  Sender sender;
  const Digest published{.lane0 = 1, .lane1 = 2};
  const Digest other{.lane0 = 1, .lane1 = 3};
  const auto commit = [&](const std::string& id, uint64_t version, const Digest& token) {
    REQUIRE(sender.state.OnCommitted(sender.Connect(id), kStream,
                                     {.version = Version(version), .state_token = token}, At(0)));
  };
  commit("below", 5, other);
  commit("same", 6, published);
  commit("other", 6, other);
  commit("above", 7, published);
  CHECK(sender.state.OnPublished(Version(6), std::span(&published, 1)) == Names{"above", "other"});
  CHECK(sender.state.Tally(Version(6), At(0)).committed == Names{"same"});
  CHECK(sender.receiver("below").committed == Version(5));
  CHECK_FALSE(sender.receiver("other").committed.has_value());
  CHECK_FALSE(sender.state.CommitTime({"above"}, Version(1)).has_value());
  // It may report the version again once it has been repaired.
  commit("other", 6, published);
  CHECK(sender.receiver("other").committed == Version(6));
}

TEST_CASE("reports of another stream are ignored", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  const Nonce nonce = sender.Announce(connection);
  CHECK_FALSE(sender.state.OnStaged(connection, nonce, kOtherStream, Version(1)));
  CHECK_FALSE(sender.state.OnCommitted(connection, kOtherStream, {.version = Version(1)}, At(0)));
  CHECK_FALSE(sender.state.OnNack(connection, nonce, kOtherStream, "bad"));
}

TEST_CASE("before a stream starts no report counts", "[protocol]") {
  AnnouncerState state;
  REQUIRE(state.Connect("a", ConnectionId(1)).ok());
  CHECK_FALSE(state.OnCommitted(ConnectionId(1), kStream, {.version = Version(1)}, At(0)));
  CHECK_FALSE(state.stream().has_value());
}

TEST_CASE("a new stream forgets versions and keeps connections", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  REQUIRE(sender.state.OnStaged(connection, sender.Announce(connection), kStream, Version(9)));
  sender.Commit(connection, 9);
  sender.state.StartStream(kOtherStream);
  CHECK(sender.receiver("a").connection == connection);
  CHECK_FALSE(sender.receiver("a").committed.has_value());
  CHECK_FALSE(sender.receiver("a").staged.has_value());
  CHECK_FALSE(sender.Met(Version(1), kAny).has_value());
  CHECK_FALSE(sender.state.CommitTime({"a"}, Version(9)).has_value());
}

TEST_CASE("starting the same stream again changes nothing", "[protocol]") {
  Sender sender;
  sender.Commit(sender.Connect("a"), 9);
  sender.state.StartStream(kStream);
  CHECK(sender.receiver("a").committed == Version(9));
}

TEST_CASE("policy all waits for every receiver that is present", "[protocol]") {
  Sender sender;
  const ConnectionId first = sender.Connect("a");
  const ConnectionId second = sender.Connect("b");
  sender.Commit(first, 1);
  CHECK_FALSE(sender.Met(Version(1), kAll).has_value());
  sender.Commit(second, 2);  // a higher version counts
  CHECK(sender.Met(Version(1), kAll) == Names{"a", "b"});
}

TEST_CASE("policy all does not wait for a receiver that went away", "[protocol]") {
  Sender sender;
  sender.Commit(sender.Connect("a"), 1);
  const ConnectionId second = sender.Connect("b");
  CHECK_FALSE(sender.Met(Version(1), kAll).has_value());
  sender.state.Disconnect(second);
  CHECK(sender.Met(Version(1), kAll) == Names{"a"});
}

TEST_CASE("policy all waits after a restart for receivers that were present before it",
          "[protocol]") {
  Sender sender;
  sender.state.Remember("was here", /*awaited=*/true);
  sender.state.Remember("had left", /*awaited=*/false);
  sender.Commit(sender.Connect("a"), 1);
  CHECK_FALSE(sender.Met(Version(1), kAll).has_value());
  CHECK(sender.Met(Version(1), kAny) == Names{"a"});
  CHECK(sender.Met(Version(1), Quorum(1)) == Names{"a"});
  const ConnectionId back = sender.Connect("was here");
  CHECK_FALSE(sender.Met(Version(1), kAll).has_value());  // it has not committed yet
  sender.Commit(back, 1);
  CHECK(sender.Met(Version(1), kAll) == Names{"a", "was here"});
}

TEST_CASE("a receiver that comes back after a restart and leaves is no longer waited for",
          "[protocol]") {
  Sender sender;
  sender.state.Remember("b", /*awaited=*/true);
  sender.Commit(sender.Connect("a"), 1);
  sender.state.Disconnect(sender.Connect("b"));
  CHECK(sender.Met(Version(1), kAll) == Names{"a"});
}

TEST_CASE("a receiver that is given up or forgotten is no longer waited for", "[protocol]") {
  Sender sender;
  sender.state.Remember("b", /*awaited=*/true);
  sender.state.Remember("c", /*awaited=*/true);
  sender.Commit(sender.Connect("a"), 1);
  CHECK(sender.state.Forget("b").ok());
  CHECK_FALSE(sender.Met(Version(1), kAll).has_value());
  CHECK(sender.state.StopAwaiting() == Names{"c"});
  CHECK(sender.Met(Version(1), kAll) == Names{"a"});
  CHECK(sender.state.receivers().contains("c"));  // still listed
  CHECK_FALSE(sender.state.receivers().contains("b"));
  CHECK(absl::IsFailedPrecondition(sender.state.Forget("a")));
  CHECK(absl::IsNotFound(sender.state.Forget("b")));
}

TEST_CASE("policy all is not met while no receiver is present", "[protocol]") {
  Sender sender;
  CHECK_FALSE(sender.Met(Version(1), kAll).has_value());
  const ConnectionId connection = sender.Connect("a");
  sender.Commit(connection, 1);
  sender.state.Disconnect(connection);
  CHECK_FALSE(sender.Met(Version(1), kAll).has_value());
}

TEST_CASE("policy all leaves out a receiver that has not committed while others have",
          "[protocol]") {
  Sender sender(10);
  const ConnectionId good = sender.Connect("good");
  const ConnectionId never = sender.Connect("never");
  // Nobody has committed, so nobody is behind, however long it takes.
  CHECK(sender.state.Tally(Version(1), At(1000)).missing == Names{"good", "never"});
  sender.Commit(good, 1, 100);
  CHECK_FALSE(sender.Met(Version(1), kAll, At(109)).has_value());
  CHECK(sender.Met(Version(1), kAll, At(110)) == Names{"good"});
  CHECK(sender.state.Tally(Version(1), At(110)).left_out == Names{"never"});
  // Neither later versions nor another connection restart the time.
  sender.Commit(good, 2, 111);
  sender.state.Disconnect(never);
  const ConnectionId again = sender.Connect("never", 112);
  CHECK(sender.Met(Version(2), kAll, At(112)) == Names{"good"});
  // A commit restarts it.
  sender.Commit(again, 1, 113);
  CHECK_FALSE(sender.Met(Version(2), kAll, At(122)).has_value());
  CHECK(sender.Met(Version(2), kAll, At(123)) == Names{"good"});
  CHECK(sender.Met(Version(1), kAll, At(123)) == Names{"good", "never"});
  sender.Commit(again, 2, 124);
  CHECK_FALSE(sender.receiver("never").behind_since.has_value());
}

TEST_CASE("a receiver that is slow and commits is never left out", "[protocol]") {
  Sender sender(10);
  const ConnectionId fast = sender.Connect("fast");
  const ConnectionId slow = sender.Connect("slow");
  for (int version = 1; version < 50; ++version) {
    sender.Commit(fast, static_cast<uint64_t>(version), version);
    if (version % 9 == 0) sender.Commit(slow, static_cast<uint64_t>(version - 5), version);
    CHECK(sender.state.Tally(Version(100), At(version)).left_out.empty());
  }
}

TEST_CASE("the laggard time of a late receiver starts when it connects", "[protocol]") {
  Sender sender(10);
  sender.Commit(sender.Connect("a"), 5, 0);
  sender.Connect("late", 100);
  CHECK_FALSE(sender.Met(Version(5), kAll, At(109)).has_value());
  CHECK(sender.Met(Version(5), kAll, At(110)) == Names{"a"});
}

TEST_CASE("policy all is not met while only left-out receivers are present", "[protocol]") {
  Sender sender(10);
  const ConnectionId good = sender.Connect("good");
  sender.Connect("never");
  sender.Commit(good, 1, 0);
  sender.state.Disconnect(good);
  CHECK_FALSE(sender.Met(Version(1), kAll, At(1000)).has_value());
}

TEST_CASE("without a laggard time no receiver is left out", "[protocol]") {
  Sender sender;
  sender.Commit(sender.Connect("a"), 1, 0);
  sender.Connect("b");
  CHECK_FALSE(sender.Met(Version(1), kAll, At(1'000'000)).has_value());
}

TEST_CASE("a new stream restarts the laggard time of all receivers", "[protocol]") {
  Sender sender(10);
  sender.Commit(sender.Connect("a"), 1, 0);
  sender.Connect("b");
  sender.state.StartStream(kOtherStream);
  CHECK(sender.state.Tally(Version(1), At(1000)).missing == Names{"a", "b"});
}

TEST_CASE("policy quorum is met by that many present receivers", "[protocol]") {
  Sender sender;
  const ConnectionId first = sender.Connect("a");
  const ConnectionId second = sender.Connect("b");
  sender.Connect("c");
  sender.Commit(first, 1);
  CHECK(sender.Met(Version(1), Quorum(1)) == Names{"a"});
  CHECK_FALSE(sender.Met(Version(1), Quorum(2)).has_value());
  sender.Commit(second, 1);
  CHECK(sender.Met(Version(1), Quorum(2)) == Names{"a", "b"});
  sender.state.Disconnect(second);
  CHECK_FALSE(sender.Met(Version(1), Quorum(2)).has_value());
}

TEST_CASE("policy any is met by one receiver", "[protocol]") {
  Sender sender;
  sender.Connect("a");
  CHECK_FALSE(sender.Met(Version(1), kAny).has_value());
  sender.Commit(sender.Connect("b"), 1);
  CHECK(sender.Met(Version(1), kAny) == Names{"b"});
}

TEST_CASE("the commit time of a version is when the last receiver reached it", "[protocol]") {
  Sender sender;
  const ConnectionId first = sender.Connect("a");
  const ConnectionId second = sender.Connect("b");
  sender.Commit(first, 1, 10);
  sender.Commit(second, 1, 15);
  sender.Commit(first, 3, 20);
  sender.Commit(second, 2, 25);
  CHECK(sender.state.CommitTime({"a"}, Version(1)) == At(10));
  CHECK(sender.state.CommitTime({"a", "b"}, Version(1)) == At(15));
  CHECK(sender.state.CommitTime({"a", "b"}, Version(2)) == At(25));  // a reached 2 with 3, at 20
  CHECK(sender.state.CommitTime({"a"}, Version(2)) == At(20));
}

TEST_CASE("a repeated report does not move the commit time", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  sender.Commit(connection, 1, 10);
  sender.Commit(connection, 1, 99);
  CHECK(sender.state.CommitTime({"a"}, Version(1)) == At(10));
}

TEST_CASE("there is no commit time before a commit or for an unknown receiver", "[protocol]") {
  Sender sender;
  sender.Connect("a");
  CHECK_FALSE(sender.state.CommitTime({"a"}, Version(1)).has_value());
  CHECK_FALSE(sender.state.CommitTime({"nobody"}, Version(1)).has_value());
}

TEST_CASE("the commit times kept of a receiver are bounded", "[protocol]") {
  Sender sender;
  const ConnectionId connection = sender.Connect("a");
  for (uint64_t version = 1; version <= 1000; ++version) {
    sender.Commit(connection, version, static_cast<int>(version));
  }
  CHECK(sender.receiver("a").commit_times.size() < 100);
  CHECK(sender.state.CommitTime({"a"}, Version(1000)) == At(1000));
}

TEST_CASE("past the maximum a new receiver is refused while all others are connected",
          "[protocol]") {
  Sender sender;
  for (size_t i = 0; i < limits::kReceiversMax; ++i) sender.Connect("r" + std::to_string(i));
  const auto refused = sender.state.Connect("one more", ConnectionId(1'000'000));
  REQUIRE_FALSE(refused.ok());
  CHECK(absl::IsResourceExhausted(refused.status()));
  CHECK(std::string(Message(refused.status())).find("'one more'") != std::string::npos);
  CHECK_FALSE(sender.state.receivers().contains("one more"));
  // Known receivers are not refused.
  CHECK(sender.state.Connect("r0", ConnectionId(1'000'001)).ok());
}

TEST_CASE("past the maximum an absent receiver is removed for a new one", "[protocol]") {
  Sender sender;
  for (size_t i = 0; i < limits::kReceiversMax; ++i) {
    const ConnectionId connection = sender.Connect("r" + std::to_string(i));
    if (i == 7) sender.state.Disconnect(connection);
  }
  CHECK(sender.state.Connect("one more", ConnectionId(1'000'000)).ok());
  CHECK_FALSE(sender.state.receivers().contains("r7"));
  CHECK(sender.state.receivers().size() == limits::kReceiversMax);
}

}  // namespace dws
