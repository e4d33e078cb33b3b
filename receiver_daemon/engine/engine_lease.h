// The execution lease of one engine rank: its state, and waiting for its answers. The gRPC stream
// (lease_stream.h) is a shell around it.
//
// Starts paused (engines attach paused); executes only between a Resume and the answer to a Pause.
// Ends once, for good: a rank that comes back attaches again and gets a new lease.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/model/weight_version.h"
#include "receiver_daemon/engine/engine_control.h"

namespace dws {

struct PauseCommand {
  uint64_t pause_id = 0;
};
struct PostCommitCommand {
  uint64_t pause_id = 0;
  WeightVersion version;
};
struct ResumeCommand {
  uint64_t pause_id = 0;  // 0: the first release
  EngineVersion version;
};
using LeaseCommand = std::variant<PauseCommand, PostCommitCommand, ResumeCommand>;

// Threads: safe from any; the commands come from one (the worker's).
class EngineLease {
 public:
  enum class State : uint8_t { kUnopened, kPaused, kPausing, kRunning, kEnded };
  // What the stream does for the lease; called without locks. Never blocks.
  struct Stream {
    std::function<void(const LeaseCommand&)> send;
    std::function<void(const Status& reason)> end;
  };

  // What the rank has to do besides stopping.
  struct Needs {
    bool post_commit = false;      // its hook rebuilds derived tensors
    bool drained_devices = false;  // it has device memory: a pause counts once devices have drained
  };

  EngineLease(uint32_t engine_rank, Generation generation, Needs needs)
      : engine_rank_(engine_rank), generation_(generation), needs_(needs) {}

  uint32_t engine_rank() const { return engine_rank_; }
  Generation generation() const { return generation_; }
  bool has_hook() const { return needs_.post_commit; }
  State state() const;

  // The stream's side. FAILED_PRECONDITION: opened before, ended, or what the rank needs of a pause
  // was left undone: it opens paused.
  Status Open(Stream stream, bool devices_drained = false);
  struct PauseAnswer {
    uint64_t pause_id = 0;
    Generation generation;
    bool devices_drained = false;
  };
  // An answer of another generation, or that leaves undone what the rank needs, ends the lease.
  void OnPaused(const PauseAnswer& answer);
  void OnPostCommitDone(uint64_t pause_id, std::string error);

  // Ends the lease and its stream. Again: nothing.
  void End(const Status& reason);

  // The worker's side. Each Request is followed by its Await.
  void RequestPause();
  Status AwaitPaused(TimePoint deadline, const Clock& clock);
  void RequestPostCommit(WeightVersion version);
  Status AwaitPostCommit(TimePoint deadline, const Clock& clock);  // OK where there is no hook
  void Resume(const EngineVersion& version);

 private:
  Status CheckDrained(const char* what, bool devices_drained) const;
  // The reason for a wait to end, or nullopt.
  Status Await(TimePoint deadline, const Clock& clock, const char* what,
               const std::function<bool()>& done);

  const uint32_t engine_rank_;
  const Generation generation_;
  const Needs needs_;
  mutable Mutex mutex_;
  CondVar changed_;
  State state_ GUARDED_BY(mutex_) = State::kUnopened;
  Status end_reason_ GUARDED_BY(mutex_);
  Stream stream_ GUARDED_BY(mutex_);
  uint64_t pause_id_ GUARDED_BY(mutex_) = 0;  // of the last question; 0 = none yet
  std::optional<std::string> hook_result_ GUARDED_BY(mutex_);
};

}  // namespace dws
