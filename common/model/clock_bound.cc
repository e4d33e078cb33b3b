// A host with a wrong clock refuses valid numbers, so the message names both remedies.
#include "common/model/clock_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "common/model/identity_limits.h"

namespace dws {
namespace {

// The highest number allowed at `now`, in `Unit`s since 1970; a clock before 1970 counts as 1970.
template <typename Unit>
uint64_t Bound(UnixTime now) {
  const UnixTime since = std::max(now, UnixTime());
  return static_cast<uint64_t>(
      std::chrono::duration_cast<Unit>(since.time_since_epoch() + limits::kAheadOfClockMax)
          .count());
}

std::string Reason(std::string_view what, std::string_view unit, uint64_t found, uint64_t bound) {
  return fmt::format(
      "its {} {} is ahead of this host's clock: expected at most {}, which is now plus {} h, in {} "
      "since 1970",
      what, found, bound, limits::kAheadOfClockMax.count(), unit);
}

}  // namespace

std::string AheadOfClock(const StreamId& stream, UnixTime now) {
  const auto bound = Bound<std::chrono::milliseconds>(now);
  if (stream.incarnation <= bound) return "";
  return Reason("incarnation", "milliseconds", stream.incarnation, bound) +
         ": start the trainer with a lower incarnation (its restart counter, or its clock), or set "
         "this host's clock right";
}

std::string AheadOfClock(RankEpoch epoch, UnixTime now) {
  const auto bound = Bound<std::chrono::microseconds>(now);
  if (epoch.value() <= bound) return "";
  return Reason("rank epoch", "microseconds", epoch.value(), bound) +
         ": set the clock of the sender's host or of this one right";
}

}  // namespace dws
