// The state of one commit to one engine. It says which step may follow, whether memory may be a
// mixture, what to do after an error, and whether the engine may run. protocol.md §4, steps 3 to 8.
// Pure: receiver_daemon/commit/commit_pipeline does the steps and reports each of them here.
//
//   kStaged -> kIntended -> kPaused -> kWriting -> kWritten -> kReleased
//                   \__________|  (nothing written yet: kAbandoned)
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/status.h"
#include "common/model/weight_version.h"

namespace dws {

// Lifecycle: one commit. Threads: one at a time. Steps out of order are our own bugs: CHECK.
class CommitState {
 public:
  enum class Phase : uint8_t {
    kStaged,     // everything is verified; nothing is durable
    kIntended,   // the intent is durable
    kPaused,     // the engine does not execute, and is the one that was staged for
    kWriting,    // memory may be a mixture
    kWritten,    // memory is the target, derived tensors too
    kReleased,   // the engine runs with the target, or is the leader's to release
    kAbandoned,  // given up; memory is unchanged
  };
  // What has to be done after an error in the current phase.
  enum class AfterError : uint8_t {
    kNothing,           // nothing to do: nothing is durable or paused
    kAbandonAndResume,  // close the intent; a proved engine goes on with its old version
    kStayPaused,        // memory is unknown: read and repaired before the engine runs
  };

  // `staged_for`: the generation whose memory the staged values were made from.
  explicit CommitState(Generation staged_for) : staged_for_(staged_for) {}

  Phase phase() const { return phase_; }

  void OnIntentRecorded();
  // UNAVAILABLE: the attached generation is not the one that the values were staged for (nullopt:
  // no complete engine is attached); nothing may be written.
  Status OnPaused(std::optional<Generation> attached);
  void OnWriteBegin();  // before the first byte
  void OnWritten();     // all bytes, and what was not staged was read back
  void OnReleased();

  AfterError OnError();

 private:
  const Generation staged_for_;
  Phase phase_ = Phase::kStaged;
};

}  // namespace dws
