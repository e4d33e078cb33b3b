// The thread that decides: looks at senders, engine and memory, and brings the engine to the newest
// version in one straight line. Everything that blocks happens here; streams and services only
// leave word.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/pulse.h"
#include "common/base/thread_pool.h"
#include "common/ledger/version_ledger.h"
#include "common/model/limits.h"
#include "common/sync_state/live_state.h"
#include "receiver_daemon/commit/commit_pipeline.h"
#include "receiver_daemon/commit/prepare.h"
#include "receiver_daemon/commit/scrub.h"
#include "receiver_daemon/commit/verification.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/group/commit_group.h"
#include "receiver_daemon/peers/change_signal.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/group_work.h"
#include "receiver_daemon/worker/operator_desk.h"
#include "receiver_daemon/worker/worker_status.h"

namespace dws {

// Lifecycle: Start, Stop; the destructor needs Stop. References outlive it. status(): any thread.
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
    OperatorDesk& desk;
    // Told of every change of readiness, one at a time, on the worker's thread or ShowReadiness's.
    std::function<void(bool ready, const std::string& reason)> on_readiness;
    std::function<void(const CommitReport&)> on_commit = {};  // there too; may be empty
    std::function<void()> on_forgotten = {};  // there too: senders are to be connected to anew
    Pulse* pulse = nullptr;  // works during a step, waits for engine ranks inside it; may be null
    CommitGroup* group = nullptr;  // picks targets and releases the engine; null: in no group
  };
  struct Options {
    Preparer::Options prepare;
    Duration pause_timeout;
    uint64_t verify_batch_bytes = limits::kVerifyBatchBytes;
    ScrubOptions scrub = {};
    CudaOptions cuda;
    StaleRule stale;
  };

  Worker(Parts parts, Options options);
  ~Worker();
  void Start();
  bool RequestStop(Duration grace);  // after what it is doing; true: it ended within `grace`
  void EndGrace();                   // a RequestStop under way waits no longer. Threads: any
  void Join();                       // waits for the end, however long

  WorkerStatus status() const;
  // One round, then one batch of what is to be verified or is due to be scrubbed. Public for tests,
  // which call it instead of Start. An error means "again, a little later".
  Status Step();
  // Staleness comes with time alone, and the worker may be in a call that hangs: to be called every
  // second or so by somebody else. Threads: any.
  void ShowReadiness();
  bool busy() const { return busy_; }  // there is more to do, although nothing has changed

 private:
  struct ActiveVerify {
    OperatorTaskPtr task;
    Verification reading;
    bool described = true;  // by the senders, all of it so far
  };
  // What the senders describe for the version memory has; none: a rank whose sender cannot say.
  struct Described {
    std::optional<VersionAt> at;
    std::map<TrainerRank, std::optional<std::vector<Digest>>> ranks;
  };

  void Run();
  void AwaitRetry(uint64_t seen, Duration delay);
  Status Round();
  Status FollowTarget();
  Result<bool> RefreshEngine();  // reads engine and memory; false: there is none to work on
  Status AcceptStream();
  Status ForgetStream(const StreamId& stream);  // worker_forget.cc
  void LoseEngine(const Status& why);           // its memory cannot be read
  void ForgetEngine();

  // Versions (worker_commit.cc).
  Status Advance(const SyncTarget& target, Way way);
  Status AdoptCommitted(const SyncTarget& target);
  Status CheckNumber(const SyncTarget& target);
  Status Commit(const Prepared& prepared, TimePoint begin);
  bool EngineIsCurrent() const;
  Result<Duration> RunPipeline(const Prepared& prepared, CommitPipeline::Release release);
  CommitReport ReportOf(const Prepared& prepared) const;

  // In a commit group (worker_group.cc).
  Status GroupRound();
  void TellEngine();
  Status TellDrift();
  Status AdoptForGroup(const std::optional<SyncTarget>& target);
  Status ResyncForGroup();
  void ObeyGroup();
  void Obey(const StageOrder& order);
  void Obey(const DropStaged& order);
  void Obey(const WriteStaged& order);
  void Obey(const ReleaseEngine& order);
  void Obey(const EndEngine& order);
  void Obey(const RecordDecided& order);
  void Obey(const RecordSettled& order);
  void Obey(const PauseEngine& order);
  bool StageForGroup();  // false: there is nothing to stage, or not yet
  Result<Prepared> PrepareForGroup(const StageOrder& order, const SyncTarget& target, bool resync);
  Status CommitForGroup(const Prepared& prepared, TimePoint begin);
  void NotePause();
  void ShowGroup();

  // Operators (worker_operations.cc).
  Status Resync(OperatorTask& task, const std::optional<SyncTarget>& target);
  Status ReadAll(OperatorTask& task);
  // Reads a batch of what is due. True: there is new drift, for the next round to repair.
  bool LookForDrift();
  void VerifyNext();
  void VerifyBatch(ActiveVerify& active);
  void TakeVerifies();
  void ScrubNext();
  // Reads a batch; what is not as `expected` is told to `task`, and is drift found by `source`.
  Status CompareBatch(const SliceBatch& batch, const std::vector<Digest>& expected,
                      OperatorTask& task, uint64_t MismatchCounts::*source);
  const std::vector<Digest>& Published(TrainerRank rank, bool& described);
  void PauseForDrift(const Status& cause);
  std::string DriftReason() const;

  // What others see (worker_status.cc).
  void SetStage(std::string stage, std::optional<WeightVersion> target);
  void SetStageBytes(uint64_t done_bytes, uint64_t total_bytes);
  void SetStaging(uint64_t bytes);
  void SetTrouble(std::string trouble);
  // What is to be shown, but for what ShowReadiness adds: drained, stale, a stream not recorded.
  void SetReadiness(bool ready, std::string reason);
  void SetUnrecorded(std::string reason);
  void SetDrain(bool drained);
  void SetPaused(bool paused);
  void PublishLive();
  void PublishCommit(CommitReport report, uint64_t attach_mismatches);
  void CountWriteMismatch();
  void CountDrift(uint64_t MismatchCounts::*source, uint64_t slices = 1);
  void CountScrub(uint64_t bytes, bool pass_done);

  const Parts parts_;
  const uint64_t staging_bytes_max_;
  const uint64_t verify_batch_bytes_;
  const Duration pause_timeout_;
  const CudaOptions cuda_;
  const StaleRule stale_;
  Preparer preparer_;
  CommitPipeline pipeline_;

  // Of the worker's thread.
  std::optional<AttachedEngine> engine_;
  EngineWeightsPtr weights_;
  LiveState live_;
  std::atomic<bool> drained_{false};  // ShowReadiness reads it too
  bool drift_paused_ = false;         // because of drift that could not be repaired
  uint64_t drifts_ = 0;               // slices found to differ
  GroupWork group_work_;
  bool busy_ = false;
  std::vector<ActiveVerify> verifies_;
  Scrub scrub_;
  Described described_;
  EngineWeightsPtr resync_read_;  // whose memory the resync has read

  std::atomic<bool> stopping_{false};
  std::thread thread_;
  mutable Mutex mutex_;
  CondVar ended_;
  bool running_ GUARDED_BY(mutex_) = false;
  bool grace_over_ GUARDED_BY(mutex_) = false;
  WorkerStatus status_ GUARDED_BY(mutex_);
  bool own_ready_ GUARDED_BY(mutex_) = false;  // by SetReadiness
  std::string own_reason_ GUARDED_BY(mutex_);
  std::string unrecorded_ GUARDED_BY(mutex_);  // why a new stream is not; empty: it is
  Mutex telling_mutex_;  // held while on_readiness is told: in the order of what was seen
};

}  // namespace dws
