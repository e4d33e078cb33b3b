// Makes an engine load the local checkpoint, and knows which version the engine holds.
//
// The version is known after a load has succeeded, or if the record of an earlier process and the
// engine itself agree on it. Otherwise, and after a load whose end was not seen, the engine may
// hold parts of two versions, or may still be reading the files. Then it is not resumed, and
// may_read() means that the files must not be changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "receiver_daemon/engine/engine_control.h"
#include "receiver_daemon/follower/loaded_record.h"

namespace dws {

// Owns the control of the engine. Threads: one.
class EngineLoader {
 public:
  // Makes the control of the engine. UNAVAILABLE, DEADLINE_EXCEEDED: try again later.
  using MakeControl = std::function<Result<std::unique_ptr<EngineControl>>()>;
  // Called with the version that the engine holds whenever that may have changed; nullopt: unknown.
  using OnHolds = std::function<void(std::optional<uint64_t>)>;

  struct Parts {
    MakeControl make_control;
    OnHolds on_holds;
    LoadedRecord record;
    const Clock& clock;  // must outlive it
  };
  EngineLoader(Parts parts, Duration timeout);

  std::optional<uint64_t> holds() const;
  // The engine may be reading the files.
  bool may_read() const { return may_read_; }
  // The checkpoint was replaced: what the engine holds is unknown, and it may be reading.
  void Forget();

  // Pauses the engine, makes it load the version, and resumes it. Returns how long it was paused;
  // nullopt: it holds these weights already and was not paused. If the pause fails, the engine
  // continues with the version it held, if that is known. After any other error it stays as it is,
  // paused or not, until a later load succeeds. After several refusals the message says to restart
  // the engine. After a load that ends with ABORTED, neither this process nor a later one tries
  // another load until the engine was seen to be gone.
  Result<std::optional<Duration>> Load(const CheckpointVersion& version);

  // Checks, at most every few seconds, that the engine still holds the version that it loaded.
  // UNAVAILABLE, FAILED_PRECONDITION: it is gone or was restarted; the version it holds is unknown
  // now.
  Status Check();

  // Hashes the engine's checksums of its weights, compares the hash with that of the last call with
  // these weights, and returns it. UNIMPLEMENTED: the engine has no checksums, or its version is
  // not known. DATA_LOSS: the hash is another one.
  Result<std::string> Verify();

 private:
  // Returns whether the engine holds these weights and need not be paused for them.
  Result<bool> HoldsAlready(const CheckpointVersion& version);
  // Sets `paused_since` when the engine has paused: it may have ended requests before.
  Status LoadPaused(const CheckpointVersion& version, TimePoint& paused_since);
  Status CountRefusal(const Status& loaded);
  // Makes the control, unless there is one. FAILED_PRECONDITION: the engine has to be restarted.
  Status Connect();
  void SetHolds(std::optional<CheckpointVersion> version);

  Parts parts_;
  const Duration timeout_;
  std::unique_ptr<EngineControl> control_;
  std::optional<CheckpointVersion> holds_;
  std::optional<std::string> checksum_;  // hash for the version it holds, from the first call
  bool may_read_ = true;
  uint32_t refusals_ = 0;       // loads in a row that the engine refused
  bool needs_restart_ = false;  // its answer to a load proves nothing
  Duration check_interval_;
  TimePoint check_at_;  // of the next check
};

}  // namespace dws
