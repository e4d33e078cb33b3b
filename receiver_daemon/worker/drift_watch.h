// Reads live memory again and compares it with what was published: for an operator's verification
// and resync, and in the background (the scrub).
//
// Drift, protocol.md §5:
// 1. a slice is not what was published for the version the engine has: counted, logged, not ready
// 2. the next round repairs it on the way of every commit: fetch, pause, write, prove, resume
// 3. what that round does not repair is repaired later, and the engine is paused until then
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/thread_pool.h"
#include "receiver_daemon/commit/prepare.h"
#include "receiver_daemon/commit/scrub.h"
#include "receiver_daemon/commit/verification.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/live_engine.h"
#include "receiver_daemon/worker/operator_requests.h"
#include "receiver_daemon/worker/worker_board.h"

namespace dws {

// Lifecycle: lives as long as the worker. Threads: the worker's.
class DriftWatch {
 public:
  struct Parts {
    LiveEngine& engine;
    Subscription& subscription;
    OperatorRequests& requests;
    Preparer& preparer;
    ThreadPool& pool;
    const Clock& clock;
    WorkerBoard& board;
    const std::atomic<bool>& stopping;
  };
  DriftWatch(const Parts& parts, uint64_t verify_batch_bytes, const ScrubOptions& scrub)
      : parts_(parts),
        engine_(parts.engine),
        board_(parts.board),
        verify_batch_bytes_(verify_batch_bytes),
        scrub_(scrub) {}

  // Reads the next due batch. Returns true if there is new drift, for the next round to repair.
  bool Look();
  // Returns whether there is more to read, although nothing has changed.
  bool busy() const { return busy_; }
  // How long until the scrub has something to read; nullopt: not before something changes.
  std::optional<Duration> UntilDue() const;

  // For a resync: reads everything, unless that was done for this task already. Slices that differ
  // are drift. CANCELLED: the receiver is stopping. Other errors as EngineWeights::ComputeStates.
  Status ReadForResync(OperatorTask& task);
  bool read_for_resync() const;
  void EndResync();

  void EndVerifies(const Status& reason);
  // The engine's memory is released: only verifications still keep it here, and the next Look ends
  // those.
  void Forget();
  // A version number may have other digests than before.
  void ForgetDescriptions() { described_ = {}; }

 private:
  struct ActiveVerify {
    OperatorTaskPtr task;
    Verification reading;
    bool described = true;  // true if the senders have described everything so far
  };
  // The senders' description of the version that memory has; none for a rank whose sender cannot
  // describe it.
  struct Described {
    std::optional<VersionAt> at;
    std::map<TrainerRank, std::optional<std::vector<Digest>>> ranks;
  };

  void TakeVerifies();
  void VerifyNext();
  void VerifyBatch(ActiveVerify& active);
  bool ScrubApplies() const;
  void ScrubNext();
  Status ReadAll(OperatorTask& task);
  // Reads a batch. Slices that are not as `expected` are reported by `task`, and are drift that
  // `source` found.
  Status CompareBatch(const SliceBatch& batch, const std::vector<Digest>& expected,
                      OperatorTask& task, uint64_t MismatchCounts::*source);
  const std::vector<Digest>& Published(TrainerRank rank, bool& described);

  const Parts parts_;
  LiveEngine& engine_;
  WorkerBoard& board_;
  const uint64_t verify_batch_bytes_;
  Scrub scrub_;
  std::vector<ActiveVerify> verifies_;
  Described described_;
  EngineWeightsPtr resync_read_;  // the memory that a resync has read
  bool busy_ = false;
};

}  // namespace dws
