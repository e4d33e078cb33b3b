// The waits of a trainer: which are over, and how they ended.
#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/model/limits.h"
#include "sender_daemon/receiver_hub.h"

namespace dws {
namespace {

void LogLeftOut(WeightVersion version, const WaitOutcome& outcome) {
  const size_t named = std::min(outcome.left_out.size(), limits::kWaitReceiversNamedMax);
  for (size_t i = 0; i < named; ++i) {
    const ReceiverBehind& receiver = outcome.left_out[i];
    LogWarning("receiver_left_out",
               {{"id", receiver.receiver_id},
                {"version", version.value()},
                {"committed", receiver.committed.value_or(WeightVersion(0)).value()},
                {"behind_seconds", ToSeconds(receiver.behind)}});
  }
}

}  // namespace

void ReceiverHub::AddWait(Wait wait) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      waits_.push_back(std::move(wait));
      wait.done = nullptr;
    }
  }
  if (wait.done != nullptr) return wait.done(UnavailableError("the sender is shutting down"), {});
  FinishWaits();
}

WaitOutcome ReceiverHub::Outcome(WaitTally tally, TimePoint now) const {
  WaitOutcome outcome{.committed = std::move(tally.committed)};
  const auto describe = [&](const std::vector<std::string>& ids,
                            std::vector<ReceiverBehind>& behind) {
    for (const std::string& id : ids) {
      const AnnouncerState::Receiver& receiver = state_.receivers().at(id);
      behind.push_back({.receiver_id = id,
                        .committed = receiver.committed,
                        .staged = receiver.staged,
                        .behind = now - receiver.behind_since.value_or(now),
                        .last_error = receiver.last_error});
    }
  };
  describe(tally.missing, outcome.missing);
  describe(tally.left_out, outcome.left_out);
  for (std::string& id : tally.awaited) outcome.awaited.push_back(Awaited(std::move(id)));
  return outcome;
}

std::vector<ReceiverHub::Finished> ReceiverHub::TakeFinished() {
  std::vector<Finished> finished;
  const TimePoint now = clock_.Now();
  const RetainedVersionPtr newest = rank_ == nullptr ? nullptr : rank_->log->Newest();
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    WaitTally tally = state_.Tally(wait->version, now);
    // Before its record nobody has it, whatever is said of its number.
    const bool recorded = newest != nullptr && newest->version >= wait->version;
    const bool met = recorded && AnnouncerState::Met(tally, wait->condition);
    const bool cancelled = !met && wait->cancelled();
    if (!met && !cancelled && now < wait->deadline) {
      ++wait;
      continue;
    }
    WaitOutcome outcome = Outcome(std::move(tally), now);
    Status status;
    if (met) {
      outcome.met_at = state_.CommitTime(outcome.committed, wait->version);
    } else if (cancelled) {
      status = CancelledError("the trainer gave up waiting for version {}", wait->version.value());
    } else {
      status = DeadlineExceededError("version {} was not {} in time: {}", wait->version.value(),
                                     recorded ? "committed" : "recorded by this sender",
                                     DescribeUnmet(outcome, wait->condition));
    }
    finished.push_back({std::move(*wait), std::move(status), std::move(outcome)});
    wait = waits_.erase(wait);
  }
  return finished;
}

void ReceiverHub::FinishWaits() {
  std::vector<Finished> finished;
  {
    MutexLock lock(mutex_);
    if (waits_.empty()) return;
    finished = TakeFinished();
  }
  for (const Finished& over : finished) {
    if (over.status.ok()) LogLeftOut(over.wait.version, over.outcome);
    over.wait.done(over.status, over.outcome);
  }
}

}  // namespace dws
