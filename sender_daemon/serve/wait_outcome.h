// The result of a trainer's Wait: the receivers that have committed the version and those that have
// not, as values, as the RPC's message, and in words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/model/weight_version.h"
#include "common/sync_state/announcer_state.h"

namespace dws::v1 {
class WaitReply;
}  // namespace dws::v1

namespace dws {

// A receiver that has not committed a version, and why that is, as far as this side knows.
struct ReceiverBehind {
  std::string receiver_id;
  std::optional<WeightVersion> committed;
  std::optional<WeightVersion> staged;
  Duration behind = {};  // AnnouncerState::Receiver::behind_since; zero: no receiver has more
  std::string last_error;
  std::optional<Duration> absent = std::nullopt;  // it is not connected, for so long
};

// A receiver that has not come back since the sender's restart; last_error says so.
ReceiverBehind Awaited(std::string receiver_id);

// How far the receivers were when a wait ended.
struct WaitOutcome {
  std::vector<std::string> committed;
  std::vector<ReceiverBehind> missing;
  std::vector<ReceiverBehind> left_out;  // policy all does not wait for them
  std::vector<ReceiverBehind> awaited;   // absent since the sender's restart: policy all waits
  std::vector<ReceiverBehind> absent;    // gone since then: nobody waits for them
  std::optional<TimePoint> met_at;       // when the last of `committed` committed, if it was met
};

// "2 of 3 connected receivers have committed it, expected 3: 'c' is at version 4 for 75 s (its last
// error)"; limits::kWaitReceiversNamedMax receivers are named. Pure.
std::string DescribeUnmet(const WaitOutcome& outcome, const WaitCondition& condition);

// A line for each receiver that was left out of a wait for `version`, up to
// limits::kWaitReceiversNamedMax.
void LogLeftOut(WeightVersion version, const WaitOutcome& outcome);

// Fills in what the outcome says of receivers.
void FillReply(const WaitOutcome& outcome, v1::WaitReply& reply);
// Like FillReply, for the details of an error: the lists, but not the counts, are shortened to
// limits::kWaitReceiversNamedMax entries and limits::kWaitDetailsBytesMax in all.
std::string ShortReply(const WaitOutcome& outcome);

}  // namespace dws
