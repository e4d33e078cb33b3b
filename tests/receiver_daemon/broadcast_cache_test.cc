#include "receiver_daemon/transfer/broadcast/broadcast_cache.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "common/model/limits.h"

namespace dws {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

const RealClock kClock;

BroadcastKey Key(uint64_t version) {
  return {.stream = {.incarnation = 1, .id_hi = 2, .id_lo = 3},
          .base = WeightVersion(version - 1),
          .version = WeightVersion(version)};
}

std::vector<std::byte> Bytes(uint8_t value) { return {std::byte{value}}; }

TimePoint In(Duration duration) { return kClock.Now() + duration; }

}  // namespace

TEST_CASE("an object that has arrived can be taken once", "[broadcast]") {
  BroadcastCache cache(kClock);
  cache.Expect(Key(2), In(hours(1)));
  cache.Put(Key(2), Bytes(7));
  CHECK(cache.Take(Key(3), {}) == std::nullopt);
  CHECK(cache.Take(Key(2), {}) == Bytes(7));
  CHECK(cache.Take(Key(2), {}) == std::nullopt);
}

TEST_CASE("an object of another base or stream is not taken for it", "[broadcast]") {
  BroadcastCache cache(kClock);
  cache.Expect(Key(5), In(hours(1)));
  cache.Put(Key(5), Bytes(7));
  BroadcastKey other = Key(5);
  other.base = WeightVersion(3);
  CHECK(cache.Take(other, {}) == std::nullopt);
  other = Key(5);
  other.stream.id_lo = 4;
  CHECK(cache.Take(other, {}) == std::nullopt);
}

TEST_CASE("Take waits for an object in transfer until it arrives or fails", "[broadcast]") {
  BroadcastCache cache(kClock);
  const bool comes = GENERATE(true, false);
  cache.Expect(Key(2), In(hours(1)));
  std::optional<std::vector<std::byte>> taken;
  std::thread taker([&] { taken = cache.Take(Key(2), {}); });
  comes ? cache.Put(Key(2), Bytes(7)) : cache.Fail(Key(2));
  taker.join();
  CHECK(taken.has_value() == comes);
}

TEST_CASE("Take stops waiting at the deadline and when the caller no longer wants the object",
          "[broadcast]") {
  BroadcastCache cache(kClock);
  cache.Expect(Key(2), In(milliseconds(30)));
  CHECK(cache.Take(Key(2), {}) == std::nullopt);
  cache.Expect(Key(3), In(hours(1)));
  int asked = 0;
  CHECK(cache.Take(Key(3), [&asked] { return ++asked < 3; }) == std::nullopt);
}

TEST_CASE("an object that is no longer expected is not kept", "[broadcast]") {
  BroadcastCache cache(kClock);
  for (uint64_t version = 2; version < 3 + limits::kBroadcastsKeptMax; ++version) {
    cache.Expect(Key(version), In(hours(1)));
  }
  cache.Put(Key(2), Bytes(7));  // the oldest was dropped
  CHECK(cache.Take(Key(2), {}) == std::nullopt);
  cache.Put(Key(3), Bytes(8));
  cache.FailAll(false);
  CHECK(cache.Take(Key(4), {}) == std::nullopt);
  CHECK(cache.Take(Key(3), {}) == Bytes(8));
  cache.Expect(Key(9), In(hours(1)));
  cache.Put(Key(9), Bytes(9));
  cache.FailAll(true);
  CHECK(cache.Take(Key(9), {}) == std::nullopt);
}

TEST_CASE("closing ends every wait", "[broadcast]") {
  BroadcastCache cache(kClock);
  cache.Expect(Key(2), In(hours(1)));
  std::optional<std::vector<std::byte>> taken;
  std::thread taker([&] { taken = cache.Take(Key(2), {}); });
  cache.Close();
  taker.join();
  CHECK(taken == std::nullopt);
  cache.Expect(Key(3), In(hours(1)));
  CHECK(cache.Take(Key(3), {}) == std::nullopt);
}

}  // namespace dws
