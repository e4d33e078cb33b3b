// What an operator sees of the worker: values only, copied out under its lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/model/digest/digest.h"
#include "common/model/weight_version.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/commit/scrub.h"
#include "receiver_daemon/commit/version_times.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/operator_requests.h"

namespace dws {

// The outcome of one commit.
struct CommitReport {
  WeightVersion version;
  uint64_t delta_bytes = 0;                     // fetched as deltas
  std::vector<uint64_t> rank_delta_bytes = {};  // the same by trainer rank
  uint64_t full_bytes = 0;                      // fetched as full tensors
  uint64_t model_bytes = 0;                     // what the version would be without deltas
  uint64_t nnz = 0;                             // of the deltas
  uint64_t elements = 0;                        // of the model
  uint64_t staging_bytes = 0;                   // in memory when all of it was there
  Duration fetch = {};                          // of the slowest rank; so is stage
  Duration stage = {};                          // verify and stage
  Duration pause = {};                          // see CommitPipeline::Done
  Duration commit = {};                         // intent, pause, write, resume
  VersionTimes times;                           // kAcknowledge once the senders were told
  bool repaired = false;                        // some tensors came in full
  double unix_seconds = 0;
};

// Slices that were not as they should be, by the check that found out.
struct MismatchCounts {
  uint64_t delta = 0;       // a delta did not fit, or did not lead to the digest that it names
  uint64_t verify = 0;      // live memory had drifted, as an operator's verification found
  uint64_t scrub = 0;       // live memory had drifted, as the scrub found
  uint64_t attach = 0;      // the memory of an attached engine was not the version of its release
  uint64_t write = 0;       // read back after a commit
  uint64_t renumbered = 0;  // its version's number was published again, with other weights
};

// Writes the log line of a commit; `took`: since the version was first looked at.
void LogCommitted(const CommitReport& report, Duration took, bool first_release);

// The worker's state at one moment: what status and metrics are made from.
struct WorkerStatus {
  bool ready = false;   // all engine ranks generate with one verified version
  std::string reason;   // why not
  std::string trouble;  // what keeps it from the target, while the engine generates with an older
                        // version
  std::optional<VersionAt> live;
  Digest state_token;  // of `live`
  std::optional<WeightVersion> target;
  std::string stage = "idle";  // fetching, staging, staged, committing, verifying, drained
  uint64_t stage_done_bytes = 0;
  uint64_t stage_total_bytes = 0;  // 0: not known
  DrainStage drain = DrainStage::kNone;
  std::optional<TimePoint> paused_since;  // the engine is here and may not generate

  uint64_t commits = 0;
  uint64_t repairs = 0;
  uint64_t delta_bytes = 0;  // fetched in all commits; so is full_bytes
  uint64_t full_bytes = 0;
  uint64_t model_bytes = 0;  // what they would have been without deltas
  std::optional<CommitReport> last_commit;
  std::optional<CommitReport> last_delta;  // the last one without full tensors
  uint64_t staging_bytes = 0;
  uint64_t staging_bytes_max = 0;
  std::map<std::string, uint64_t> nacks;  // by status code, lower case
  MismatchCounts mismatches;
  ScrubProgress scrub;

  CommitPolicy commit_policy;
  // Set while the commit policy holds versions back: the time when the first of them was staged.
  std::optional<TimePoint> held_since;
  double held_seconds = 0;
  // Full versions that were read while they were captured: ready when they were published, and
  // dropped before.
  uint64_t early_staged = 0;
  uint64_t early_dropped = 0;
  uint64_t replaced = 0;  // versions that were staged, and replaced by newer ones before a commit

  // While some trainer rank has no accepted sender; 0: each has one.
  double seconds_without_sender = 0;
  std::string stale;                 // said when that lasts too long; empty: it does not
  std::optional<VersionAt> version;  // that the engine was brought to last
  TimePoint version_since;           // when to that first; none yet: the start
  double seconds_since_version = 0;
};

// Returns why the engine's version counts as stale, in words that stay the same while the cause
// does; empty: it does not.
std::string StaleReason(const Subscription& subscription, const StaleRule& rule);

// The newest version that a connected sender offers, and how far the engine is behind it; while a
// trainer rank has no accepted sender, how far it is at least behind the newest version that was
// heard of. Versions of another stream do not count: if the stream is new, the engine has no
// version of it.
struct NewestOffered {
  uint64_t version = 0;  // 0: none
  uint64_t lag = 0;
  bool lag_known = true;  // false: no newer version was heard of, and there is no sender to ask
};
NewestOffered FindNewestOffered(const WorkerStatus& worker, const Subscription& subscription);

// What keeps the engine waiting, for the engine: "no trainer layout yet: ...", "version 7 is being
// fetched"; empty: it runs.
std::string WhyEngineWaits(const WorkerStatus& worker, const Subscription& subscription);

}  // namespace dws
