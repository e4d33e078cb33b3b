// Limits how far numbers that begin at the wall clock may be ahead of it. Incarnations
// (milliseconds since 1970) and rank epochs (microseconds) only grow: a number far ahead of every
// clock would shut out all later ones for ever. So neither a sender nor a receiver raises a fence
// to more than limits::kAheadOfClockMax ahead of its own clock. Small numbers, such as a job's
// restart counter, are always accepted. Pure.
#pragma once

#include <string>

#include "common/base/wall_clock.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// Returns why the incarnation, or the epoch, is refused at time `now`: what was expected, what was
// found, and what to do. Returns "" if it is accepted.
std::string AheadOfClock(const StreamId& stream, UnixTime now);
std::string AheadOfClock(RankEpoch epoch, UnixTime now);

}  // namespace dws
