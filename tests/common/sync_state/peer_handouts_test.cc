// Answers to receivers that serve each other, as their events come.
#include "common/sync_state/peer_handouts.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

namespace dws {
namespace {

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

constexpr uint64_t kConnections = 100;

VersionAt At(uint64_t version) {
  return {.stream = {.incarnation = 1}, .version = WeightVersion(version)};
}
std::string Id(uint64_t n) { return "r" + std::to_string(n); }
std::string Address(uint64_t n, const std::string& host) {
  return host + ":" + std::to_string(7900 + n);
}

// Receivers r1, r2, ... that serve others, each with the connection of its number.
struct Case {
  explicit Case(uint64_t receivers, const std::string& view = "") {
    for (uint64_t n = 1; n <= receivers; ++n) {
      state.Connect(Id(n), ConnectionId(n), Address(n, "h" + std::to_string(n)), view);
    }
  }
  PeerHandouts::Answer Ask(uint64_t n, uint64_t version = 1, std::vector<std::string> avoid = {},
                           bool has_delta = false) {
    const auto answer = state.Ask(
        {.receiver_id = Id(n), .at = At(version), .has_delta = has_delta, .avoid = avoid}, now);
    REQUIRE(answer.has_value());
    return *answer;
  }
  // It has read a part of the version from others.
  PeerHandouts::Answer AskBegun(uint64_t n, uint64_t version, uint64_t newest) {
    return *state.Ask(
        {.receiver_id = Id(n), .at = At(version), .newest = WeightVersion(newest), .begun = true},
        now);
  }
  void Commit(uint64_t n, uint64_t version = 1) { state.OnCommitted(ConnectionId(n), At(version)); }

  PeerHandouts state;
  TimePoint now = TimePoint() + 1h;
};

bool Granted(const PeerHandouts::Answer& answer) {
  return answer.address.empty() && answer.wait == Duration::zero() && !answer.newer.has_value();
}
bool Waits(const PeerHandouts::Answer& answer) {
  return answer.address.empty() && answer.wait > Duration::zero();
}

}  // namespace

TEST_CASE("one receiver reads a version from the senders, the others wait for it", "[protocol]") {
  Case c(3);
  CHECK(Granted(c.Ask(1)));
  CHECK(Granted(c.Ask(1)));  // for another rank of the trainer
  CHECK(Waits(c.Ask(2)));
  CHECK(Waits(c.Ask(3)));
  CHECK(c.state.totals(c.now).grants == 1);
  CHECK(c.state.totals(c.now).waiting == 2);
  c.Commit(1);
  CHECK(c.Ask(2).address == Address(1, "h1"));
  CHECK(c.Ask(3).address == Address(1, "h1"));
  CHECK(c.state.totals(c.now).grants == 1);
  CHECK(c.state.totals(c.now).grants_lost == 0);
  CHECK(c.state.totals(c.now).waiting == 0);
}

TEST_CASE("sixteen joiners take a version once from the senders", "[protocol]") {
  Case c(16);
  std::set<uint64_t> left;
  for (uint64_t n = 1; n <= 16; ++n) left.insert(n);
  size_t rounds = 0;
  while (!left.empty()) {
    REQUIRE(++rounds < 10);
    std::vector<uint64_t> reads;
    for (const uint64_t n : left) {
      if (!Waits(c.Ask(n))) reads.push_back(n);
    }
    for (const uint64_t n : reads) {
      c.Commit(n);
      left.erase(n);
    }
    c.now += 200ms;
  }
  CHECK(rounds == 4);  // 1, 3, 9, 16 have it
  CHECK(c.state.totals(c.now).grants == 1);
  CHECK(c.state.totals(c.now).handed_out == 15);
}

TEST_CASE("a grant ends with a refusal, its connection, or without progress", "[protocol]") {
  Case c(4);
  CHECK(Granted(c.Ask(1)));
  c.state.OnNack(ConnectionId(1));
  CHECK(Granted(c.Ask(2)));
  c.state.Disconnect(ConnectionId(2));
  CHECK(Granted(c.Ask(3)));
  CHECK(Waits(c.Ask(4)));
  for (int i = 0; i < 5; ++i) {  // it makes progress
    c.now += kPeerGrantIdle - 1s;
    c.state.OnRead(Id(3), false, c.now);
    CHECK(Waits(c.Ask(4)));
  }
  c.now += kPeerGrantIdle + 1s;
  CHECK(Granted(c.Ask(4)));
  CHECK(c.state.totals(c.now).grants_lost == 3);
}

TEST_CASE("what was read may be staged and committed for longer", "[protocol]") {
  Case c(2);
  CHECK(Granted(c.Ask(1)));
  c.state.OnRead(Id(1), true, c.now);
  c.now += kPeerGrantCommit - 1s;
  CHECK(Waits(c.Ask(2)));
  c.state.OnStaged(ConnectionId(1), c.now);
  c.now += kPeerGrantCommit - 1s;
  CHECK(Waits(c.Ask(2)));
  c.now += 2s;
  CHECK(Granted(c.Ask(2)));
}

TEST_CASE("few receivers read from one at a time, and the least used one is next", "[protocol]") {
  Case c(8);
  c.Commit(1);
  c.Commit(2);
  std::multiset<std::string> read;
  for (uint64_t n = 3; n <= 6; ++n) read.insert(c.Ask(n).address);
  CHECK(read.count(Address(1, "h1")) == 2);
  CHECK(read.count(Address(2, "h2")) == 2);
  CHECK(Waits(c.Ask(7)));
  CHECK_FALSE(c.Ask(3).address.empty());  // stays where it reads
  c.Commit(3);
  CHECK(c.Ask(7).address != "");
  // Those that do not ask again are gone.
  c.now += kPeerReadLease + 1s;
  CHECK_FALSE(c.Ask(8).address.empty());
}

TEST_CASE("a receiver of the same host is read from first", "[protocol]") {
  Case c(3);
  c.state.Connect("near", ConnectionId(kConnections), "h3:1", "");
  c.Commit(1);
  c.Commit(2);
  c.state.OnCommitted(ConnectionId(kConnections), At(1));
  CHECK(c.Ask(3).address == "h3:1");
}

TEST_CASE("addresses that served badly are avoided, and the senders are left", "[protocol]") {
  Case c(3);
  c.Commit(1);
  c.Commit(2);
  const std::string one = Address(1, "h1");
  const std::string two = Address(2, "h2");
  CHECK(c.Ask(3, 1, {one}).address == two);
  CHECK(c.Ask(3, 1, {two}).address == one);
  CHECK(Granted(c.Ask(3, 1, {one, two})));
  std::vector<std::string> many(kPeersAvoidedMax, "x:1");
  many.push_back(one);  // beyond the limit
  c.Commit(3);
  CHECK_FALSE(c.Ask(2, 1, many).address.empty());
}

TEST_CASE("a version that others have left is not waited for", "[protocol]") {
  Case c(3);
  c.Commit(1, 5);
  const auto ask = [&](uint64_t newest) {
    return *c.state.Ask(
        {.receiver_id = Id(2), .at = At(4), .newest = WeightVersion(newest), .has_delta = true},
        c.now);
  };
  const auto answer = ask(5);
  CHECK(answer.address.empty());
  REQUIRE(answer.newer.has_value());
  CHECK(*answer.newer == WeightVersion(5));
  CHECK(c.Ask(2, 5, {}, true).address == Address(1, "h1"));
  // But one that serves badly is no reason.
  CHECK(Granted(c.Ask(3, 4, {Address(1, "h1")})));
  CHECK(c.state.totals(c.now).grants == 1);
}

TEST_CASE("a version above the newest that was published is no reason to give up", "[protocol]") {
  Case c(2);
  c.Commit(1, 99);
  CHECK(Granted(c.Ask(2, 4)));
}

TEST_CASE("of those that have begun a version that others have left, one completes it",
          "[protocol]") {
  Case c(4);
  c.Commit(1, 4);
  for (uint64_t n = 2; n <= 3; ++n) CHECK(c.Ask(n, 4).address == Address(1, "h1"));
  c.Commit(1, 5);
  CHECK(Granted(c.AskBegun(2, 4, 5)));
  CHECK(Granted(c.AskBegun(2, 4, 5)));  // for another rank of the trainer
  CHECK(c.AskBegun(3, 4, 5).newer == WeightVersion(5));
  CHECK(c.AskBegun(4, 4, 5).newer == WeightVersion(5));
  CHECK(c.state.totals(c.now).grants == 1);
  // The next version has one of its own, and the one before no other.
  c.Commit(1, 6);
  CHECK(Granted(c.AskBegun(3, 5, 6)));
  CHECK(c.AskBegun(4, 4, 6).newer == WeightVersion(6));
  // One that may not read from the senders takes the newer one.
  const auto only = c.state.Ask({.receiver_id = Id(4),
                                 .at = At(5),
                                 .newest = WeightVersion(6),
                                 .begun = true,
                                 .only_others = true},
                                c.now);
  CHECK(only->newer == WeightVersion(6));
}

TEST_CASE("one completes a version though another reads a newer one for all", "[protocol]") {
  Case c(4);
  CHECK(Granted(c.Ask(4, 6)));
  c.Commit(1, 5);
  CHECK(Granted(c.AskBegun(2, 4, 6)));
  CHECK(Waits(c.Ask(3, 6)));
}

TEST_CASE("receivers that ask for what they had are no sources", "[protocol]") {
  Case c(40);
  for (uint64_t n = 1; n <= 40; ++n) c.Commit(n);
  // All engines restarted. Each is sent to others until these have asked too.
  size_t granted = 0;
  for (uint64_t n = 1; n <= 40; ++n) granted += Granted(c.Ask(n)) ? 1 : 0;
  CHECK(granted == 1);
  CHECK(Granted(c.Ask(40)));
  CHECK(Waits(c.Ask(1)));
}

TEST_CASE("a receiver without the version that it acknowledged is no source of it", "[protocol]") {
  Case c(4);
  for (uint64_t n = 1; n <= 3; ++n) c.Commit(n);
  std::vector<std::string> without;
  for (int i = 0; i < 3; ++i) {
    const auto answer = c.state.Ask({.receiver_id = Id(4), .at = At(1), .without = without}, c.now);
    REQUIRE_FALSE(answer->address.empty());
    without = {answer->address};
  }
  CHECK(Granted(*c.state.Ask({.receiver_id = Id(4), .at = At(1), .without = without}, c.now)));
  c.Commit(4);
  // It has a newer one by now: that counts.
  c.Commit(1, 2);
  const std::vector<std::string> one = {Address(1, "h1")};
  CHECK_FALSE(
      c.state.Ask({.receiver_id = Id(2), .at = At(1), .without = one}, c.now)->address.empty());
  CHECK(c.Ask(3, 2).address == Address(1, "h1"));
}

TEST_CASE("a receiver whose read has failed gives way to those that wait", "[protocol]") {
  Case c(3);
  const auto failed = [&](uint64_t n) {
    return *c.state.Ask({.receiver_id = Id(n), .at = At(1), .failed = true}, c.now);
  };
  CHECK(Granted(c.Ask(1)));
  CHECK(Waits(c.Ask(2)));
  CHECK(Waits(failed(1)));
  CHECK(c.state.totals(c.now).grants_lost == 1);
  CHECK(Granted(c.Ask(2)));
  CHECK(Waits(c.Ask(1)));
  // If all that wait have failed, they go on by turns.
  CHECK(Waits(failed(2)));
  CHECK(Granted(c.Ask(1)));
  CHECK(Waits(c.Ask(2)));
  CHECK(Waits(failed(1)));
  CHECK(Granted(c.Ask(2)));
  c.Commit(2);
  CHECK(c.Ask(1).address == Address(2, "h2"));
}

TEST_CASE("a receiver that reads only others holds nobody up", "[protocol]") {
  Case c(2);
  const auto only = [&] {
    return *c.state.Ask({.receiver_id = Id(1), .at = At(1), .only_others = true}, c.now);
  };
  CHECK(Waits(only()));
  CHECK(Granted(c.Ask(2)));
  CHECK(Waits(only()));
  // It cannot go first.
  CHECK(Granted(*c.state.Ask({.receiver_id = Id(2), .at = At(1), .failed = true}, c.now)));
  CHECK(Waits(only()));
  c.Commit(2);
  CHECK(only().address == Address(2, "h2"));
}

TEST_CASE("a grant lasts while the ranks of other senders are read", "[protocol]") {
  Case c(2);
  const auto granted = c.state.Ask({.receiver_id = Id(1), .at = At(1), .other_ranks = 600s}, c.now);
  CHECK(Granted(*granted));
  c.state.OnRead(Id(1), true, c.now);
  c.now += 600s + kPeerGrantCommit - 1s;
  CHECK(Waits(c.Ask(2)));
  c.now += 2s;
  CHECK(Granted(c.Ask(2)));
}

TEST_CASE("an older connection that comes late replaces none", "[protocol]") {
  Case c(2);
  c.state.Connect(Id(1), ConnectionId(kConnections), "h1:2", "");
  c.state.Connect(Id(1), ConnectionId(kConnections - 1), "h1:3", "");
  c.state.Disconnect(ConnectionId(kConnections - 1));
  c.state.OnCommitted(ConnectionId(kConnections), At(1));
  CHECK(c.Ask(2).address == "h1:2");
}

TEST_CASE("only exactly the version in the same view is read", "[protocol]") {
  Case c(2);
  c.state.Connect("fp8", ConnectionId(kConnections), "h9:1", "fp8-block128/deepseek");
  c.state.OnCommitted(ConnectionId(kConnections), At(2));
  c.Commit(1, 1);
  CHECK(Granted(c.Ask(2, 2)));
  // A grant in one view keeps nobody of another waiting.
  const auto other = c.state.Ask({.receiver_id = "fp8", .at = At(3)}, c.now);
  CHECK(Granted(*other));
}

TEST_CASE("receivers that are about to apply a delta are waited for", "[protocol]") {
  Case c(3);
  c.Commit(1, 4);
  CHECK(Waits(c.Ask(2, 5, {}, true)));
  c.Commit(1, 5);
  CHECK(c.Ask(2, 5, {}, true).address == Address(1, "h1"));
  // Not without end.
  CHECK(Waits(c.Ask(3, 6, {}, true)));
  c.now += kPeerCatchUp + 1ms;
  CHECK(Granted(c.Ask(3, 6, {}, true)));
}

TEST_CASE("a receiver that needs full tensors itself is not waited for", "[protocol]") {
  Case c(2);
  c.Commit(1, 4);
  CHECK(Granted(c.Ask(2, 5, {}, false)));  // a full version
  Case d(3);
  d.Commit(1, 4);
  CHECK(Waits(d.Ask(2, 5, {}, true)));
  CHECK(Waits(d.Ask(1, 5, {}, true)) == false);
}

TEST_CASE("a receiver that is not known is not answered, and a late report changes nothing",
          "[protocol]") {
  Case c(2);
  CHECK_FALSE(c.state.Ask({.receiver_id = "x", .at = At(1)}, c.now).has_value());
  c.Commit(1);
  c.state.Connect(Id(1), ConnectionId(kConnections), "h1:2", "");  // it restarted
  c.state.OnCommitted(ConnectionId(1), At(1));                     // of the old connection
  c.state.Disconnect(ConnectionId(1));
  CHECK(Granted(c.Ask(2)));
  CHECK(c.state.totals(c.now).able == 2);
}

TEST_CASE("a commit of an older version ends no grant", "[protocol]") {
  Case c(2);
  CHECK(Granted(c.Ask(1, 5)));
  c.Commit(1, 4);  // acknowledged again after a welcome
  CHECK(Waits(c.Ask(2, 5)));
  CHECK(c.state.totals(c.now).grants_lost == 0);
}

}  // namespace dws
