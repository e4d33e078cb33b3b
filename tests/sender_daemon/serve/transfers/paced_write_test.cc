// Writes wait for the limit, and for nothing once the call is cancelled.
#include "common/service/grpc/paced_write.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/fakes/eventually.h"

namespace dws {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kSecond = 1'000'000;  // bytes, at the limit of the tests

class SetClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(std::chrono::hours(1)); }
};

// Time stands still for the limit: each reservation waits for all before.
struct Paced {
  explicit Paced(uint64_t bytes_per_second = kSecond) : limit(bytes_per_second, clock) {}

  // Later on, a write waits for this much.
  void Reserve(uint64_t bytes) { static_cast<void>(limit.Reserve(bytes)); }
  void At(uint64_t bytes) {
    write.At(bytes, [this] {
      thread = std::this_thread::get_id();
      ++written;
    });
  }

  SetClock clock;
  EgressLimit limit;
  std::atomic<int> written{0};
  std::atomic<std::thread::id> thread;
  PacedWrite write{limit};  // ends first: its alarm uses the others
};

TEST_CASE("without a limit each write is made at once, by its caller", "[paced_write]") {
  Paced paced(0);
  for (int i = 1; i <= 5; ++i) {
    paced.At(uint64_t{1} << 40);
    REQUIRE(paced.written == i);
  }
  CHECK(paced.thread.load() == std::this_thread::get_id());
}

TEST_CASE("a write waits until its bytes may be sent", "[paced_write]") {
  Paced paced;
  paced.At(kSecond / 2);
  REQUIRE(paced.written == 1);  // the first one has nothing to wait for
  const auto began = std::chrono::steady_clock::now();
  paced.At(kSecond / 5);
  CHECK(paced.written == 1);
  REQUIRE(Eventually([&] { return paced.written == 2; }));
  // 500 ms, some of which the silence before had saved.
  CHECK(std::chrono::steady_clock::now() - began > milliseconds(400));
  CHECK(paced.thread.load() != std::this_thread::get_id());
  // And again, with the same alarm.
  paced.At(1);
  CHECK(paced.written == 2);
  REQUIRE(Eventually([&] { return paced.written == 3; }));
  CHECK(std::chrono::steady_clock::now() - began > milliseconds(1000));
}

TEST_CASE("a write that waits is made when its call is cancelled, once", "[paced_write]") {
  Paced paced;
  paced.Reserve(kSecond * 3600);
  paced.At(1);
  CHECK(paced.written == 0);
  paced.write.Cancel();
  REQUIRE(Eventually([&] { return paced.written == 1; }));
  // What comes after it does not wait either, although it is an hour early.
  paced.At(1);
  CHECK(paced.written == 2);
  paced.write.Cancel();
  CHECK(paced.written == 2);
}

TEST_CASE("a call that is cancelled before it writes waits for nothing", "[paced_write]") {
  Paced paced;
  paced.Reserve(kSecond * 3600);
  paced.write.Cancel();
  paced.At(1);
  CHECK(paced.written == 1);
  CHECK(paced.thread.load() == std::this_thread::get_id());
}

}  // namespace
}  // namespace dws
