#include "common/service/grpc/egress_limit.h"

#include <catch2/catch.hpp>

namespace dws {
namespace {

using std::chrono::milliseconds;

class SetClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(Duration by) { now_ += by; }

 private:
  TimePoint now_ = TimePoint(std::chrono::hours(1));
};

TEST_CASE("without a limit nothing waits", "[egress]") {
  SetClock clock;
  EgressLimit limit(0, clock);
  for (int i = 0; i < 100; ++i) CHECK(limit.Reserve(uint64_t{1} << 40) == Duration::zero());
}

TEST_CASE("transfers take turns and together keep the limit", "[egress]") {
  SetClock clock;
  EgressLimit limit(1'000'000, clock);
  CHECK(limit.Reserve(100'000) == Duration::zero());
  // 100 ms of them, 20 ms of which the silence before had saved.
  CHECK(limit.Reserve(50'000) == milliseconds(80));
  CHECK(limit.Reserve(50'000) == milliseconds(130));
  clock.Advance(milliseconds(180));
  CHECK(limit.Reserve(1000) == Duration::zero());
  // A long silence saves no more.
  clock.Advance(std::chrono::hours(1));
  CHECK(limit.Reserve(30'000) == Duration::zero());
  CHECK(limit.Reserve(1) == milliseconds(10));
}

}  // namespace
}  // namespace dws
