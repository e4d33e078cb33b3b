// How far numbers that begin at the wall clock may be ahead of it. Incarnations (milliseconds since
// 1970) and rank epochs (microseconds) only grow: one far ahead of every clock would lock out all
// that follow for ever. So neither a sender nor a receiver lets a fence be raised by more than
// limits::kAheadOfClockMax beyond its own clock. Small numbers, a job's restart counter, always
// fit. Pure.
#pragma once

#include <string>

#include "common/base/wall_clock.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// Why the incarnation, or the epoch, is refused at that time, with what was expected, what was
// found and what to do; "" when it is not.
std::string AheadOfClock(const StreamId& stream, UnixTime now);
std::string AheadOfClock(RankEpoch epoch, UnixTime now);

}  // namespace dws
