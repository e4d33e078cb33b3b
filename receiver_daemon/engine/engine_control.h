// The interface through which a commit pauses and resumes an engine. lease_control.h implements it
// over the lease streams of all engine ranks, engine_http/http_control.h over the engine's own HTTP
// server; tests use a fake.
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

// Controls one engine, all its ranks. Threads: one at a time.
class EngineControl {
 public:
  virtual ~EngineControl() = default;

  // On OK no rank executes and all devices have drained. Ranks that are already paused stay paused.
  // UNAVAILABLE: a rank is gone. DEADLINE_EXCEEDED: a rank did not answer in time. After an error
  // ranks may or may not be paused.
  virtual Status Pause(Duration timeout) = 0;

  // All ranks with a hook rebuild their derived tensors. Call it only while they are paused.
  // FAILED_PRECONDITION: a hook failed; the message has its error. UNAVAILABLE, DEADLINE_EXCEEDED:
  // as above.
  virtual Status PostCommit(WeightVersion version, Duration timeout) = 0;

  // Lets all attached ranks execute with `version`. After an error some may still be paused: the
  // caller has to try again, beginning with Pause. UNAVAILABLE, DEADLINE_EXCEEDED: as above.
  virtual Status Resume(const EngineVersion& version) = 0;

  // Whether the engine still has the version that it was resumed with. FAILED_PRECONDITION: it
  // reports another version, for example after a restart. UNAVAILABLE: it is not reachable. OK
  // where this needs no check: an engine with a lease loses the lease when it dies.
  virtual Status Check(WeightVersion, Duration /*timeout*/) { return OkStatus(); }
};

}  // namespace dws
