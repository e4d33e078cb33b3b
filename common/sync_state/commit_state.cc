// A step out of order could let an engine run with a mixture, so it ends the process.
#include "common/sync_state/commit_state.h"

#include "common/base/check.h"

namespace dws {

void CommitState::OnIntentRecorded() {
  DWS_CHECK(phase_ == Phase::kStaged);
  phase_ = Phase::kIntended;
}

Status CommitState::OnPaused(std::optional<Generation> attached) {
  DWS_CHECK(phase_ == Phase::kIntended);
  if (attached != staged_for_) {
    return UnavailableError("the engine attached again meanwhile: generation {}, expected {}",
                            attached.has_value() ? attached->value() : 0, staged_for_.value());
  }
  phase_ = Phase::kPaused;
  return OkStatus();
}

void CommitState::OnWriteBegin() {
  DWS_CHECK(phase_ == Phase::kPaused);
  phase_ = Phase::kWriting;
}

void CommitState::OnWritten() {
  DWS_CHECK(phase_ == Phase::kWriting);
  phase_ = Phase::kWritten;
}

void CommitState::OnReleased() {
  DWS_CHECK(phase_ == Phase::kWritten);
  phase_ = Phase::kReleased;
}

CommitState::AfterError CommitState::OnError() {
  switch (phase_) {
    case Phase::kStaged:
      return AfterError::kNothing;
    case Phase::kIntended:
    case Phase::kPaused:
      phase_ = Phase::kAbandoned;
      return AfterError::kAbandonAndResume;
    case Phase::kWriting:
    case Phase::kWritten:
      return AfterError::kStayPaused;
    case Phase::kReleased:
    case Phase::kAbandoned:
      break;
  }
  DWS_CHECK(false);  // the commit had ended
  return AfterError::kStayPaused;
}

}  // namespace dws
