#include "common/sync_state/link_state.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace dws {
namespace {

using Step = LinkState::Step;
using std::chrono::milliseconds;

TimePoint At(Duration after) { return TimePoint(std::chrono::hours(1)) + after; }

LinkState Open(Duration at) {
  LinkState link(At(at));
  REQUIRE(link.Tick(At(at)) == Step::kConnect);
  REQUIRE(link.OnStarted());
  return link;
}

}  // namespace

TEST_CASE("a link connects at once and opens one stream at a time", "[protocol]") {
  LinkState link(At({}));
  CHECK(link.idle());
  CHECK(link.Tick(At({})) == Step::kConnect);
  CHECK_FALSE(link.idle());
  CHECK(link.Tick(At(milliseconds(1))) == Step::kWait);
  CHECK(link.Tick(At(limits::kKeepaliveTimeout * 2)) == Step::kWait);  // nothing to drop yet
  CHECK(link.OnStarted());
  CHECK_FALSE(link.idle());
  CHECK(link.Tick(At(milliseconds(1))) == Step::kWait);
}

TEST_CASE("a silent stream is dropped after each timeout and an active one is not", "[protocol]") {
  LinkState link = Open({});
  const Duration timeout = limits::kKeepaliveTimeout;
  CHECK(link.Tick(At(timeout - milliseconds(1))) == Step::kWait);
  CHECK(link.OnHeard(At(timeout - milliseconds(1))));
  CHECK_FALSE(link.OnHeard(At(timeout - milliseconds(1))));
  CHECK(link.Tick(At(2 * timeout - milliseconds(2))) == Step::kWait);
  CHECK(link.Tick(At(2 * timeout - milliseconds(1))) == Step::kDrop);
  CHECK(link.Tick(At(2 * timeout)) == Step::kWait);
  CHECK(link.Tick(At(3 * timeout)) == Step::kDrop);  // it has not ended yet
}

TEST_CASE("connection attempts back off until one is accepted", "[protocol]") {
  LinkState link(At({}));
  Duration now{};
  for (Duration delay = limits::kReconnectDelayMin; delay < 5 * limits::kReconnectDelayMax;
       delay *= 2) {
    REQUIRE(link.Tick(At(now)) == Step::kConnect);
    REQUIRE(link.OnStarted());
    link.OnHeard(At(now));  // a message alone is not a success
    link.OnDone(At(now), false);
    CHECK(link.idle());
    const Duration waits = std::min<Duration>(delay, limits::kReconnectDelayMax);
    CHECK(link.Tick(At(now + waits - milliseconds(1))) == Step::kWait);
    now += waits;
  }
  REQUIRE(link.Tick(At(now)) == Step::kConnect);
  REQUIRE(link.OnStarted());
  link.OnAccepted();
  link.OnDone(At(now), false);
  CHECK(link.Tick(At(now + limits::kReconnectDelayMin)) == Step::kConnect);
}

TEST_CASE("a stream that a twin fenced is opened again only after the longest delay",
          "[protocol]") {
  LinkState link = Open({});
  link.OnAccepted();
  link.OnDone(At({}), true);
  CHECK(link.Tick(At(limits::kReconnectDelayMax - milliseconds(1))) == Step::kWait);
  CHECK(link.Tick(At(limits::kReconnectDelayMax)) == Step::kConnect);
}

TEST_CASE("a stream that ends while it is being opened is not kept", "[protocol]") {
  LinkState link(At({}));
  REQUIRE(link.Tick(At({})) == Step::kConnect);
  link.OnDone(At({}), false);
  CHECK_FALSE(link.idle());  // OnStarted is still to come
  CHECK(link.Tick(At(limits::kReconnectDelayMax)) == Step::kWait);
  CHECK_FALSE(link.OnStarted());
  CHECK(link.idle());
  CHECK(link.Tick(At(limits::kReconnectDelayMin)) == Step::kConnect);
}

TEST_CASE("whether a stream was heard is reset by the next one", "[protocol]") {
  LinkState link = Open({});
  CHECK_FALSE(link.heard());
  CHECK(link.OnHeard(At({})));
  link.OnDone(At({}), false);
  CHECK(link.heard());
  REQUIRE(link.Tick(At(limits::kReconnectDelayMax)) == Step::kConnect);
  CHECK_FALSE(link.heard());
}

TEST_CASE("a stopped link opens and drops nothing and is idle once its stream has ended",
          "[protocol]") {
  LinkState never(At({}));
  never.Stop();
  CHECK(never.Tick(At({})) == Step::kWait);
  CHECK(never.idle());

  LinkState link = Open({});
  link.Stop();
  CHECK(link.stopping());
  CHECK(link.Tick(At(limits::kKeepaliveTimeout)) == Step::kWait);
  CHECK_FALSE(link.idle());
  link.OnDone(At({}), false);
  CHECK(link.idle());
  CHECK(link.Tick(At(limits::kReconnectDelayMax)) == Step::kWait);
}

}  // namespace dws
