// The thread that decides: looks at senders, engine and memory, and brings the engine to the newest
// version in one straight line. Everything that blocks happens here; streams and services only
// leave word.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread_pool.h"
#include "common/ledger/version_ledger.h"
#include "receiver_daemon/change_signal.h"
#include "receiver_daemon/commit_pipeline.h"
#include "receiver_daemon/engine_registry.h"
#include "receiver_daemon/live_state.h"
#include "receiver_daemon/prepare.h"
#include "receiver_daemon/subscription.h"

namespace dws {

// What an operator sees of it.
struct WorkerStatus {
  bool ready = false;  // all engine ranks generate with one verified version
  std::string reason;  // why not
  std::string
      trouble;  // what keeps it from the target, while the engine generates with an older version
  std::optional<VersionAt> live;
  Digest state_token;  // of `live`
  std::optional<WeightVersion> target;
  std::string stage = "idle";  // fetching, committing
  uint64_t commits = 0;
  uint64_t repairs = 0;
  double last_pause_seconds = 0;
};

// Lifecycle: Start, Stop; the destructor needs Stop. All references outlive it. Threads: its own;
// status() from any.
class Worker {
 public:
  struct Parts {
    Subscription& subscription;
    EngineRegistry& registry;
    SenderGroup& senders;
    ReceiverLedger& ledger;
    ThreadPool& pool;
    const Clock& clock;
    ChangeSignal& changed;
    // Told of every change of readiness, on the worker's thread.
    std::function<void(bool ready, const std::string& reason)> on_readiness;
  };
  struct Options {
    Preparer::Options prepare;
    Duration pause_timeout;
  };

  Worker(Parts parts, Options options);
  ~Worker();

  void Start();
  // Asks it to end after what it is doing; true when it has ended within `grace`.
  bool RequestStop(Duration grace);
  // Waits for the end, however long.
  void Join();

  WorkerStatus status() const;

  // One round: everything that can be done now. Public for tests, which call it instead of Start.
  // An error means "again, a little later".
  Status Step();

 private:
  void Run();
  // Reads engine and memory; false when there is no engine to work on.
  Result<bool> RefreshEngine();
  Status AcceptStream();
  Status Advance(const SyncTarget& target);
  Status AdoptCommitted(const SyncTarget& target);
  Status Commit(const Prepared& prepared, TimePoint begin);
  void ForgetEngine();
  void SetStage(std::string stage, std::optional<WeightVersion> target);
  void SetTrouble(std::string trouble);
  void SetReadiness(bool ready, std::string reason);
  void PublishLive();

  const Parts parts_;
  Preparer preparer_;
  CommitPipeline pipeline_;

  // Of the worker's thread.
  std::optional<AttachedEngine> engine_;
  EngineWeightsPtr weights_;
  LiveState live_;

  std::atomic<bool> stopping_{false};
  std::thread thread_;
  mutable Mutex mutex_;
  CondVar ended_;
  bool running_ GUARDED_BY(mutex_) = false;
  WorkerStatus status_ GUARDED_BY(mutex_);
};

}  // namespace dws
