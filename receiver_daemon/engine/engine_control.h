// The seam between the commit pipeline and whoever holds the execution of an engine.
// lease_control.h goes through the lease streams of all engine ranks, engine_http/http_control.h to
// an engine's own HTTP server; tests drive a fake.
#pragma once

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/digest.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// A version an engine may generate with.
struct EngineVersion {
  StreamId stream;
  WeightVersion version;
  Digest state_token;  // over the state tokens of all trainer ranks
};

// Threads: one at a time.
class EngineControl {
 public:
  virtual ~EngineControl() = default;

  // When OK, no rank executes and all devices have drained. Ranks that are paused already stay so.
  // UNAVAILABLE: a rank is gone. DEADLINE_EXCEEDED: a rank did not answer in time. After an error
  // ranks may or may not be paused.
  virtual Status Pause(Duration timeout) = 0;

  // All ranks with a hook rebuild their derived tensors. FAILED_PRECONDITION: a hook failed, with
  // its words. UNAVAILABLE, DEADLINE_EXCEEDED: as above. Only while paused.
  virtual Status PostCommit(WeightVersion version, Duration timeout) = 0;

  // Lets all ranks that are here execute with `version`. An error: some may still be paused, and
  // the caller has to come back, with Pause. UNAVAILABLE, DEADLINE_EXCEEDED: as above.
  virtual Status Resume(const EngineVersion& version) = 0;

  // Whether it still is what it was when it was resumed. FAILED_PRECONDITION: it says that it holds
  // another version, as one does that was started anew. UNAVAILABLE: nobody is there. OK where it
  // cannot be told, as with who loses a lease when it dies.
  virtual Status Check(WeightVersion, Duration /*timeout*/) { return OkStatus(); }
};

}  // namespace dws
