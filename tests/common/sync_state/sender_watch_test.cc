#include "common/sync_state/sender_watch.h"

#include <catch2/catch.hpp>

namespace dws {
namespace {

using std::chrono::seconds;

TimePoint At(int after) { return TimePoint(std::chrono::hours(1)) + seconds(after); }

}  // namespace

TEST_CASE("a receiver that never had its senders is stale that long after its start",
          "[protocol]") {
  SenderWatch watch(At(0));
  watch.Observe(false, At(10));  // a connection that was not accepted does not restart the time
  CHECK(watch.Without(At(29)) == seconds(29));
}

TEST_CASE("accepted senders end staleness at once and their loss restarts the time", "[protocol]") {
  SenderWatch watch(At(0));
  watch.Observe(true, At(40));
  CHECK(watch.Without(At(5000)) == Duration::zero());
  watch.Observe(false, At(5000));
  watch.Observe(false, At(5020));  // still the same loss
  CHECK(watch.Without(At(5029)) == seconds(29));
  watch.Observe(true, At(5031));
  CHECK(watch.Without(At(9000)) == Duration::zero());
}

}  // namespace dws
