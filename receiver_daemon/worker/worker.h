// The thread that decides: it looks at senders, engine and memory, and brings the engine to the
// newest version. Everything that blocks happens here; streams and services only notify it.
//
//   Worker            the loop, and what an operator asks of it
//   VersionDriver     picks versions and releases the engine: alone, or in a commit group
//   VersionRunner     takes memory from one version to another
//   LiveEngine        the engine's memory and lease, and what is known of them
//   DriftWatch        reads memory again: scrub, verification, resync
//   WorkerBoard       what all of them show of it
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/liveness.h"
#include "common/base/threads/thread_pool.h"
#include "common/ledger/version_ledger.h"
#include "common/model/limits.h"
#include "common/service/peers/change_signal.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/engine/commit_boundary.h"
#include "receiver_daemon/group/commit_group.h"
#include "receiver_daemon/worker/drift_watch.h"
#include "receiver_daemon/worker/live_engine.h"
#include "receiver_daemon/worker/version_driver.h"
#include "receiver_daemon/worker/version_runner.h"
#include "receiver_daemon/worker/worker_board.h"

namespace dws {

// Lifecycle: Start, then Stop; Stop must come before the destructor. References must outlive it.
// status(): any thread.
class Worker {
 public:
  struct Parts {
    Subscription& subscription;
    EngineRegistry& registry;
    Senders& senders;
    SourceChain& sources;
    ReceiverLedger& ledger;
    ThreadPool& pool;
    const Clock& clock;
    ChangeSignal& changed;
    OperatorRequests& requests;
    // See WorkerBoard.
    std::function<void(bool ready, const std::string& reason)> on_readiness;
    std::function<void(const CommitReport&)> on_commit = {};
    std::function<void(Duration)> on_acknowledged = {};
    // Called on the worker's thread: connect to the senders again. May be empty.
    std::function<void()> on_forgotten = {};
    Liveness* liveness =
        nullptr;  // works during a step, waits for engine ranks inside it; may be null
    CommitGroup* group = nullptr;     // picks targets and releases the engine; null: in no group
    ServedWeights* served = nullptr;  // see LiveEngine
  };
  struct Options {
    Preparer::Options prepare;
    Duration pause_timeout;
    uint64_t verify_batch_bytes = limits::kVerifyBatchBytes;
    ScrubOptions scrub = {};
    CudaOptions cuda;
    StaleRule stale;
    CommitPolicy commit_policy;  // of a leader: given to its group as well
  };

  Worker(Parts parts, Options options);
  ~Worker();
  void Start();
  // Stops after its present work; returns true if it ended within `grace`.
  bool RequestStop(Duration grace);
  // Ends the wait of a RequestStop under way. Threads: any.
  void EndGrace() { grace_.Cancel(); }
  void Join();  // waits for the end, however long

  WorkerStatus status() const { return board_.status(); }
  // Engines and operators open and end boundaries here. Threads: any.
  CommitBoundary& boundary() { return boundary_; }
  // One round, then one batch of a verification or of the scrub. Public for tests, which call it
  // instead of Start. An error means "again, a little later".
  Status Step();
  // One turn of the loop: a Step, and how long to wait after it. Public for the simulation, which
  // has a loop of its own.
  struct Turn {
    Duration wait;       // zero: not at all
    bool retry = false;  // the step failed: changes alone do not end the wait
  };
  Turn RunOnce();
  // See WorkerBoard. Threads: any.
  void ShowReadiness() { board_.ShowReadiness(); }
  // Returns whether there is more to do, although nothing has changed.
  bool busy() const { return watch_.busy(); }

 private:
  std::unique_ptr<VersionDriver> MakeDriver(const CommitPolicy& policy);
  void Run();
  void AwaitRetry(uint64_t seen, Duration delay);
  bool Look();
  Status Round();
  Status AcceptStream();
  Status ForgetStream(const StreamId& stream);

  const Parts parts_;
  std::atomic<bool> stopping_{false};
  Preparer preparer_;
  CommitBoundary boundary_;
  WorkerBoard board_;
  LiveEngine engine_;
  DriftWatch watch_;
  VersionRunner runner_;
  const std::unique_ptr<VersionDriver> driver_;
  Duration retry_delay_ = limits::kReconnectDelayMin;  // of the next step that fails

  std::thread thread_;
  std::atomic<bool> running_{false};
  Cancellation grace_;  // over: the worker has ended, or nobody waits for it
};

}  // namespace dws
