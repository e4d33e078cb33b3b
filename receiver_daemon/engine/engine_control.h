// The interface through which a commit pauses and resumes an engine. lease_control.h implements it
// over the lease streams of all engine ranks, engine_http/http_control.h over the engine's own HTTP
// server; tests use a fake.
#pragma once

#include <string>
#include <unordered_map>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// A version an engine may generate with.
struct EngineVersion {
  StreamId stream;
  WeightVersion version;
  Digest state_token;  // over the state tokens of all trainer ranks
};

// For each canonical tensor a number over all of its elements, which changes with them.
using TensorContents = std::unordered_map<std::string, uint64_t>;

// Controls one engine, all its ranks. Threads: one at a time.
class EngineControl {
 public:
  virtual ~EngineControl() = default;

  // On OK no rank executes and all devices have drained. Ranks that are already paused stay paused.
  // UNAVAILABLE: a rank is gone. DEADLINE_EXCEEDED: a rank did not answer in time. After an error
  // ranks may or may not be paused.
  virtual Status Pause(Duration timeout) = 0;

  // How long before the last Pause returned OK the last rank had stopped: until then the engine
  // ran. Zero where engines do not say.
  virtual Duration StoppedFor() const { return Duration::zero(); }

  // Memory is about to be written, to be `contents` (empty: not known), and is no whole version
  // until the next Resume.
  virtual void OnWriteBegin(const TensorContents& /*contents*/) {}

  // All ranks with a hook rebuild their derived tensors. Call it only while they are paused.
  // FAILED_PRECONDITION: a hook failed; the message has its error. ABORTED: it failed, ranks may
  // still be at it, and the next answers of this engine may be those of this call: it has to be
  // restarted. UNAVAILABLE, DEADLINE_EXCEEDED: as above.
  virtual Status PostCommit(WeightVersion version, Duration timeout) = 0;

  // Lets all attached ranks execute with `version`. After an error some may still be paused: the
  // caller has to try again, beginning with Pause. UNAVAILABLE, DEADLINE_EXCEEDED: as above.
  virtual Status Resume(const EngineVersion& version) = 0;

  // Tells the engine the version number of its weights: it has just loaded them, or it runs and the
  // version changes none of them. FAILED_PRECONDITION: it refuses, or reports another number after
  // that. UNAVAILABLE, DEADLINE_EXCEEDED: as above. OK for engines that are not told.
  virtual Status Tell(WeightVersion, Duration /*timeout*/) { return OkStatus(); }

  // OK: the engine itself reports that it has `version` and runs. UNIMPLEMENTED: it does not
  // report. FAILED_PRECONDITION: it reports something else. UNAVAILABLE, DEADLINE_EXCEEDED: as
  // above.
  virtual Status Reports(WeightVersion, Duration /*timeout*/) {
    return UnimplementedError("this engine does not say which version it has");
  }

  // The engine's own checksums of its weights, as one line: equal for equal weights on engines of
  // the same setup. UNIMPLEMENTED: it has none.
  virtual Result<std::string> Checksum(Duration /*timeout*/) {
    return UnimplementedError("this engine has no checksums of its weights");
  }

  // Checks that the engine still has the version with which it was resumed. FAILED_PRECONDITION: it
  // reports another version, for example after a restart. UNAVAILABLE: it is not reachable. OK if
  // no check is needed: an engine with a lease loses the lease when it dies.
  virtual Status Check(WeightVersion, Duration /*timeout*/) { return OkStatus(); }
};

}  // namespace dws
