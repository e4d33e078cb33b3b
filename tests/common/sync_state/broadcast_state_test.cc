#include "common/sync_state/broadcast_state.h"

#include <catch2/catch.hpp>

namespace dws {
namespace {

using Departure = BroadcastState::Departure;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kJoin{5};
constexpr ConnectionId kA{1}, kB{2}, kC{3};

// A sender with its own clock.
struct Sender {
  BroadcastState state{kJoin};
  TimePoint now{std::chrono::hours(1)};

  BroadcastState::Step Next(Duration after = {}) {
    now += after;
    return state.Next(now);
  }
  // Checks that an epoch with exactly these members is to be formed now; returns it.
  BroadcastEpoch Form(const std::vector<ConnectionId>& members, Duration after = {}) {
    const auto step = Next(after);
    REQUIRE(std::holds_alternative<BroadcastState::Form>(step));
    CHECK(std::get<BroadcastState::Form>(step).members == members);
    return std::get<BroadcastState::Form>(step).epoch;
  }
  void Join(BroadcastEpoch epoch) {
    for (const ConnectionId member : state.members()) state.OnJoined(member, epoch);
    state.OnFormed(epoch);
    Next();
    REQUIRE(state.ready());
  }
  BroadcastState::End End(Duration after = {}) {
    const auto step = Next(after);
    REQUIRE(std::holds_alternative<BroadcastState::End>(step));
    return std::get<BroadcastState::End>(step);
  }
  bool Idles(Duration after = {}) { return std::holds_alternative<std::monostate>(Next(after)); }
};

}  // namespace

TEST_CASE("an epoch is ready when the sender and all members have joined", "[broadcast]") {
  Sender sender;
  CHECK(sender.Idles());  // no receiver yet
  sender.state.OnCapable(kA);
  sender.state.OnCapable(kB);
  const BroadcastEpoch epoch = sender.Form({kA, kB});
  sender.state.OnJoined(kA, epoch);
  sender.state.OnFormed(epoch);
  CHECK(sender.Idles());
  CHECK_FALSE(sender.state.ready());
  sender.state.OnJoined(kB, BroadcastEpoch(epoch.value() + 7));  // of an epoch that does not exist
  CHECK(sender.Idles());
  CHECK_FALSE(sender.state.ready());
  sender.state.OnJoined(kB, epoch);
  CHECK(sender.Idles());
  CHECK(sender.state.ready());
}

TEST_CASE("an epoch ends when a member is lost and the next has the other members", "[broadcast]") {
  Sender sender;
  for (const ConnectionId member : {kA, kB, kC}) sender.state.OnCapable(member);
  sender.Join(sender.Form({kA, kB, kC}));
  sender.state.OnDisconnect(kB);
  CHECK_FALSE(sender.state.ready());
  const BroadcastState::End end = sender.End();
  CHECK(end.failed);
  CHECK(end.members == std::vector<ConnectionId>{kA, kC});
  sender.state.OnLeft(kA, end.epoch, Departure::kAsked, sender.now);
  CHECK(sender.Idles(limits::kBroadcastBackoffMin));  // C has not left yet
  sender.state.OnLeft(kC, end.epoch, Departure::kAsked, sender.now);
  CHECK(sender.Idles());
  CHECK(sender.Form({kA, kC}).value() == end.epoch.value() + 1);
}

TEST_CASE("a member that does not answer is left out of epochs until it does", "[broadcast]") {
  Sender sender;
  sender.state.OnCapable(kA);
  sender.state.OnCapable(kB);
  const BroadcastEpoch first = sender.Form({kA, kB});
  sender.Join(first);
  sender.state.OnBroken(first);  // a broadcast passed its deadline
  CHECK(sender.End().failed);
  sender.state.OnLeft(kA, first, Departure::kStalled, sender.now);
  CHECK(sender.Idles(limits::kBroadcastLeaveGrace - milliseconds(1)));
  CHECK(sender.Idles(milliseconds(1)));  // the grace for B is over
  const BroadcastEpoch second = sender.Form({kA});
  sender.Join(second);

  sender.state.OnLeft(kB, first, Departure::kAsked, sender.now);  // it is alive after all
  CHECK(sender.Idles());  // no rebuild before the interval is over
  const BroadcastState::End end = sender.End(limits::kBroadcastRebuildInterval);
  CHECK_FALSE(end.failed);
  sender.state.OnLeft(kA, second, Departure::kAsked, sender.now);
  CHECK(sender.Idles());
  sender.Form({kA, kB});
}

TEST_CASE("a new receiver is added between broadcasts and not during one", "[broadcast]") {
  Sender sender;
  sender.state.OnCapable(kA);
  sender.Join(sender.Form({kA}));
  sender.state.OnCapable(kB);
  sender.now += limits::kBroadcastRebuildInterval;
  sender.state.OnBroadcast(sender.now);
  CHECK(sender.Idles(limits::kBroadcastQuiet - milliseconds(1)));
  CHECK_FALSE(sender.End(milliseconds(1)).failed);
}

TEST_CASE("an epoch that is not joined in time ends", "[broadcast]") {
  Sender sender;
  sender.state.OnCapable(kA);
  sender.state.OnFormed(sender.Form({kA}));
  CHECK(sender.Idles(kJoin - milliseconds(1)));
  CHECK(sender.End(milliseconds(1)).failed);
}

TEST_CASE("epochs back off after repeated failures until a broadcast succeeds", "[broadcast]") {
  Sender sender;
  sender.state.OnCapable(kA);
  const auto fail = [&](BroadcastEpoch epoch) {
    sender.state.OnBroken(epoch);
    CHECK(sender.End().failed);
    sender.state.OnLeft(kA, epoch, Departure::kStalled, sender.now);
    CHECK(sender.Idles());
  };
  fail(sender.Form({kA}));
  CHECK(sender.Idles(limits::kBroadcastBackoffMin - milliseconds(1)));
  fail(sender.Form({kA}, milliseconds(1)));
  CHECK(sender.Idles(limits::kBroadcastBackoffMin * 2 - milliseconds(1)));
  BroadcastEpoch epoch = sender.Form({kA}, milliseconds(1));
  for (int i = 0; i < 40; ++i) {
    fail(epoch);
    epoch = sender.Form({kA}, limits::kBroadcastBackoffMax);
  }
  sender.Join(epoch);
  sender.state.OnBroadcast(sender.now);
  fail(epoch);
  sender.Form({kA}, limits::kBroadcastBackoffMin);
}

TEST_CASE("a receiver that is unable to take part is left out for a while", "[broadcast]") {
  Sender sender;
  sender.state.OnCapable(kA);
  sender.state.OnCapable(kB);
  const BroadcastEpoch first = sender.Form({kA, kB});
  sender.state.OnLeft(kB, first, Departure::kUnable, sender.now);
  CHECK(sender.End().failed);
  sender.state.OnLeft(kA, first, Departure::kAsked, sender.now);
  CHECK(sender.Idles());
  const BroadcastEpoch second = sender.Form({kA}, limits::kBroadcastBackoffMin);
  sender.Join(second);
  CHECK_FALSE(sender.End(limits::kBroadcastExclusion).failed);
}

TEST_CASE("events of an epoch that has ended change nothing", "[broadcast]") {
  Sender sender;
  sender.state.OnCapable(kA);
  const BroadcastEpoch first = sender.Form({kA});
  sender.state.OnBroken(first);
  sender.End();
  sender.state.OnLeft(kA, first, Departure::kStalled, sender.now);
  CHECK(sender.Idles());
  const BroadcastEpoch second = sender.Form({kA}, limits::kBroadcastBackoffMin);
  sender.state.OnLeft(kA, first, Departure::kUnable, sender.now);
  sender.state.OnBroken(first);
  sender.state.OnFormed(first);
  CHECK_FALSE(sender.state.broken());
  sender.Join(second);
}

}  // namespace dws
