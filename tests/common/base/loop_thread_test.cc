#include "common/base/threads/loop_thread.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>

#include "tests/fakes/eventually.h"

namespace dws {
namespace {

constexpr Duration kNever = std::chrono::hours(1);

TEST_CASE("rounds repeat after the time that the last one returned", "[loop_thread]") {
  std::atomic<int> rounds{0};
  LoopThread loop(
      [&]() -> Duration { return ++rounds < 3 ? Duration(std::chrono::milliseconds(1)) : kNever; });
  loop.Start();
  REQUIRE(Eventually([&] { return rounds == 3; }));
  loop.Stop();
  CHECK(rounds == 3);
}

TEST_CASE("a wake ends the wait before the next round", "[loop_thread]") {
  std::atomic<int> rounds{0};
  LoopThread loop([&] {
    ++rounds;
    return kNever;
  });
  loop.Start(kNever);
  CHECK(rounds == 0);
  for (int expected = 1; expected <= 3; ++expected) {
    loop.Wake();
    REQUIRE(Eventually([&] { return rounds == expected; }));
  }
}

TEST_CASE("a wake during a round causes another round", "[loop_thread]") {
  std::atomic<int> rounds{0};
  LoopThread loop([&] {
    if (++rounds == 1) loop.Wake();
    return kNever;
  });
  loop.Start();
  REQUIRE(Eventually([&] { return rounds == 2; }));
}

TEST_CASE("stop waits for the round that runs and no other begins", "[loop_thread]") {
  std::atomic<bool> begun{false};
  std::atomic<bool> ended{false};
  LoopThread loop([&]() -> Duration {
    begun = true;
    while (!loop.stopping()) std::this_thread::yield();
    ended = true;
    return Duration::zero();
  });
  loop.Start();
  REQUIRE(Eventually([&] { return begun.load(); }));
  loop.Stop();
  CHECK(ended);
  CHECK_FALSE(loop.started());
  ended = false;
  loop.Stop();  // a second call does nothing
  CHECK_FALSE(ended);
}

TEST_CASE("a loop that was never started stops at once", "[loop_thread]") {
  LoopThread loop([]() -> Duration {
    FAIL("no round was wanted");
    return kNever;
  });
  loop.Stop();
}

}  // namespace
}  // namespace dws
