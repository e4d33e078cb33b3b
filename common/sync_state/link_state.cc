#include "common/sync_state/link_state.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace dws {

LinkState::Step LinkState::Tick(TimePoint now) {
  if (stopping_) return Step::kWait;
  switch (phase_) {
    case Phase::kStarting:
    case Phase::kEndedEarly:
      return Step::kWait;
    case Phase::kOpen:
      if (now - last_heard_ < limits::kKeepaliveTimeout) return Step::kWait;
      // So that the drop is requested once, and not with every tick until the stream has ended.
      last_heard_ = now;
      return Step::kDrop;
    case Phase::kIdle:
      break;
  }
  if (now < next_attempt_) return Step::kWait;
  phase_ = Phase::kStarting;
  heard_ = false;
  last_heard_ = now;
  return Step::kConnect;
}

bool LinkState::OnStarted() {
  DWS_CHECK(phase_ == Phase::kStarting || phase_ == Phase::kEndedEarly);
  const bool open = phase_ == Phase::kStarting;
  phase_ = open ? Phase::kOpen : Phase::kIdle;
  return open;
}

bool LinkState::OnHeard(TimePoint now) {
  last_heard_ = now;
  return !std::exchange(heard_, true);
}

// A stream can end before its start is reported. It then stays in kEndedEarly until OnStarted, so
// that a late report does not make an ended stream look open.
void LinkState::OnDone(TimePoint now, bool fenced) {
  phase_ = phase_ == Phase::kStarting ? Phase::kEndedEarly : Phase::kIdle;
  if (fenced) delay_ = limits::kReconnectDelayMax;
  next_attempt_ = now + delay_;
  delay_ = std::min<Duration>(delay_ * 2, limits::kReconnectDelayMax);
}

}  // namespace dws
