// The execution lease of one engine rank: its state, and waiting for its answers. The gRPC stream
// (lease_stream.h) is a shell around it.
//
// Starts paused (engines attach paused); executes only between a Resume and the answer to a Pause.
// A rank that executes until it asks for a commit starts running, with weights of its own.
// Ends once and for good: a rank that returns attaches again and gets a new lease.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/weight_version.h"
#include "common/sync_state/live_state.h"
#include "receiver_daemon/engine/engine_control.h"

namespace dws {

// The commands that the receiver sends over the lease stream. The answer to a command repeats its
// `pause_id`; each pause and each hook has a new one.
struct PauseCommand {
  uint64_t pause_id = 0;
};
// Asks the engine to rebuild tensors derived from its weights.
struct PostCommitCommand {
  uint64_t pause_id = 0;
  WeightVersion version;
  std::vector<uint64_t> contents = {};  // of the views' tensors; empty: not known
};
// Lets the engine run with a version.
struct ResumeCommand {
  uint64_t pause_id = 0;  // 0: the first release
  EngineVersion version;
};
using LeaseCommand = std::variant<PauseCommand, PostCommitCommand, ResumeCommand>;

// The lease of one registration, shared by the registry, the stream and the commit pipeline.
// Threads: safe from any; Await and Resume from one (the worker's).
class EngineLease {
 public:
  enum class State : uint8_t { kUnopened, kPaused, kPausing, kRunning, kEnded };
  // What the stream does for the lease. Called with no lock held; never blocks.
  struct Stream {
    std::function<void(const LeaseCommand&)> send;
    std::function<void(const Status& reason)> end;
  };

  // What a commit needs of the rank in addition to stopping.
  struct Needs {
    bool post_commit = false;      // its hook rebuilds derived tensors
    bool drained_devices = false;  // has device memory: paused once its devices have drained
    bool request = false;          // it executes until it has asked for a commit
    // With post_commit: the canonical tensor of each view.
    std::vector<std::string> tensors = {};
  };

  EngineLease(uint32_t engine_rank, Generation generation, Needs needs)
      : engine_rank_(engine_rank), generation_(generation), needs_(std::move(needs)) {}

  uint32_t engine_rank() const { return engine_rank_; }
  Generation generation() const { return generation_; }
  bool has_hook() const { return needs_.post_commit; }
  bool asks() const { return needs_.request; }  // for its commits
  State state() const;
  // How long the rank had already stopped when it answered the last pause. Zero before the first
  // pause.
  Duration stopped_for() const;

  // Called by the stream. The lease opens paused, or running (see Needs::request).
  // FAILED_PRECONDITION: it is already open, or the rank's devices have not drained as Needs
  // demands. After End: its reason.
  Status Open(Stream stream, bool devices_drained = false);
  struct PauseAnswer {
    uint64_t pause_id = 0;
    Generation generation;
    bool devices_drained = false;
    Duration stopped_for = Duration::zero();  // since its last forward pass ended
  };
  // An answer of another generation, or without the drained devices that Needs demands, ends the
  // lease. A late answer to an earlier pause is ignored.
  void OnPaused(const PauseAnswer& answer);
  void OnPostCommitDone(uint64_t pause_id, std::string error);
  // A request of a rank that executes until it asks: it lets commits happen until memory has
  // `version` of `stream` (nullopt: of any), or a newer one. Version 0 takes the request back.
  struct CommitRequest {
    WeightVersion version;
    std::optional<StreamId> stream;
  };
  void OnCommitRequest(const CommitRequest& request);

  // Ends the lease and its stream. Does nothing if the lease has ended.
  void End(const Status& reason);

  struct Commit {
    std::optional<VersionAt> live;  // the version in memory; nullopt: no known version
    VersionAt target;
  };
  // Returns whether the rank would stop for the commit. A request for a version of any stream is
  // met by one of the target's stream: in another stream the same number names other weights.
  bool MayCommit(const Commit& commit) const;

  // Called by the worker when a commit begins to write: from then until Resume no request is
  // needed.
  void OnWriteBegin(const TensorContents& contents);
  // Called by the worker. Each Request is followed by its Await. UNAVAILABLE: the lease has ended.
  // DEADLINE_EXCEEDED: no answer in time. FAILED_PRECONDITION: the hook failed.
  void RequestPause();
  Status AwaitPaused(TimePoint deadline, const Clock& clock);
  void RequestPostCommit(WeightVersion version);
  Status AwaitPostCommit(TimePoint deadline, const Clock& clock);  // OK without a hook
  void Resume(const EngineVersion& version);

 private:
  Status CheckDrained(const char* what, bool devices_drained) const;
  // Waits for `done`, which is called with the lock held. `what` is for the message of a timeout.
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
  uint64_t pause_id_ GUARDED_BY(mutex_) = 0;  // of the last pause or hook; 0: none yet
  Duration stopped_for_ GUARDED_BY(mutex_) = Duration::zero();
  std::optional<std::string> hook_result_ GUARDED_BY(mutex_);
  std::optional<CommitRequest> request_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;            // since OnWriteBegin
  std::vector<uint64_t> contents_ GUARDED_BY(mutex_);  // that it was called with, of Needs::tensors
};

}  // namespace dws
