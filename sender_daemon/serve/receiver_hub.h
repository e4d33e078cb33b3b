// All that the sender knows of its receivers: their connections, the pure AnnouncerState behind a
// mutex, and the Waits of the trainer. AnnouncerState decides; this class calls connections and
// waiters.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/sync_state/announcer_state.h"
#include "common/sync_state/live_state.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/serve/receiver_memory.h"
#include "sender_daemon/serve/wait_outcome.h"

namespace dws {

// One Sync stream as the hub sees it. Calls never block. They only say that a message is due: it is
// made from ReceiverHub::Current() when it is written, so a newer announcement replaces an unsent
// older one.
class SyncConnection {
 public:
  virtual ~SyncConnection() = default;
  virtual void WelcomeDue() = 0;  // followed by an announcement
  virtual void AnnounceDue() = 0;
  virtual void ReplacingDue() {}
  virtual void KeepaliveDue() = 0;
  virtual void Close(const Status& reason) = 0;
  // Returns whether it fetches deltas while they are captured.
  virtual bool early_deltas() const { return false; }
};

// Threads: safe from any. Callbacks run on the caller's or the hub's own thread, without locks.
class ReceiverHub {
 public:
  // `laggard_after`: as in AnnouncerState. `memory`: the receivers of earlier processes; null: none
  // are remembered. `on_commit`: called with each report that was counted; may be empty.
  ReceiverHub(const Clock& clock, std::string job_id, Duration laggard_after = Duration::zero(),
              std::unique_ptr<ReceiverMemory> memory = nullptr,
              std::function<void(const AcknowledgedCommit&)> on_commit = nullptr);
  ~ReceiverHub();

  // Ends all waits with UNAVAILABLE and closes all connections.
  void Stop();

  // `view`: the view that it follows, in the form of ParseView; empty: the trainer's own tensors.
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED: the receiver is refused.
  Result<ConnectionId> Connect(const std::string& job_id, const std::string& receiver_id,
                               std::shared_ptr<SyncConnection> connection, std::string view = {});
  void Disconnect(ConnectionId connection);
  Nonce NextNonce(ConnectionId connection, bool announcement);
  void OnStaged(ConnectionId connection, Nonce nonce, const StreamId& stream,
                WeightVersion version);
  // Returns false, and ignores the report, if it is of a version that was never published, or of
  // other weights.
  bool OnCommitted(ConnectionId connection, const StreamId& stream,
                   const AcknowledgedCommit& report);
  // Returns whether it answers the last announcement. An answer to an older one changes nothing.
  bool OnNack(ConnectionId connection, Nonce nonce, const StreamId& stream,
              const std::string& error);

  // The trainer registered: welcomes every receiver (again) and announces what can be served.
  void Welcome(RankStatePtr state);
  // The state is no longer served: waits end with ABORTED, connections are closed so that receivers
  // connect again, and the receivers' reports about its stream no longer count.
  void Forget();
  // A version was published in the current state. `view`: it was published before, and this view
  // has it now.
  void Announce(const std::optional<std::string>& view = std::nullopt);
  // The version that is being captured in the current state may be fetched already, or was given
  // up.
  void Replacing();
  RankStatePtr Current() const;  // null before the first registration, and after Forget
  // Returns the current state of a view; empty: Current(). Also null if the view has not begun.
  RankStatePtr Current(const std::string& view) const;
  // Current(), or the view with this layout; null: neither.
  RankStatePtr WithLayout(const Digest& signature) const;
  // A view has begun: welcomes the receivers that follow it. Null: it is no longer served.
  void SetView(const std::string& name, RankStatePtr state);
  // The view cannot go on: closes the connections of the receivers that follow it.
  void EndView(const std::string& name, const Status& reason);
  // Returns the views that connected receivers follow.
  std::set<std::string> FollowedViews() const;
  struct ServedView {
    std::string name;
    RankStatePtr state;
    uint32_t receivers = 0;  // number of connected receivers that follow it
  };
  std::vector<ServedView> Views() const;  // by name
  // Returns the view that a receiver follows; empty: the trainer's own tensors, or it is not
  // connected.
  std::string ViewOf(ConnectionId connection) const;

  struct Wait {
    WeightVersion version;
    WaitCondition condition;
    TimePoint deadline;
    std::function<bool()> cancelled;
    // Called once. OK: the condition is met. DEADLINE_EXCEEDED: it is not; the message says how far
    // the receivers are.
    std::function<void(const Status& status, const WaitOutcome& outcome)> done;
  };
  void AddWait(Wait wait);

  // Forgets an absent receiver that will not return: waits and status no longer include it. Errors:
  // AnnouncerState::Forget.
  Status Forget(const std::string& receiver_id);

  std::map<std::string, AnnouncerState::Receiver> Receivers() const;
  // Returns whether any connected receiver fetches deltas while they are captured.
  bool AnyEarly() const {
    MutexLock lock(mutex_);
    return std::ranges::any_of(
        links_, [](const auto& link) { return link.second.connection->early_deltas(); });
  }
  // Returns whether policy all leaves this receiver out now.
  bool LeftOut(const AnnouncerState::Receiver& receiver) const;
  const Clock& clock() const { return clock_; }
  const std::string& job_id() const { return job_id_; }

 private:
  RankStatePtr StateOf(const std::string& view) const REQUIRES(mutex_);
  void Tick();
  // Known receivers. Recall loads those of the previous process. KeepKnown stops waiting for them
  // when their time is over, and records which receivers are present.
  void Recall();
  void KeepKnown(TimePoint now);
  // Returns whether the report can be true: it names a published version, with the weights that
  // were published.
  bool Plausible(ConnectionId connection, const StreamId& stream,
                 const AcknowledgedCommit& report) const REQUIRES(mutex_);
  // Removes the waits that have ended, and returns them with their results.
  struct Finished {
    Wait wait;
    Status status;
    WaitOutcome outcome;
  };
  std::vector<Finished> TakeFinished() REQUIRES(mutex_);
  WaitOutcome Outcome(WaitTally tally, TimePoint now) const REQUIRES(mutex_);
  void FinishWaits();
  std::vector<std::shared_ptr<SyncConnection>> Connections() const;
  // Returns the connections that follow the view.
  std::vector<std::shared_ptr<SyncConnection>> Followers(const std::string& view) const;

  const Clock& clock_;
  const std::string job_id_;
  const std::function<void(const AcknowledgedCommit&)> on_commit_;
  mutable Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  AnnouncerState state_ GUARDED_BY(mutex_);
  RankStatePtr rank_ GUARDED_BY(mutex_);
  std::map<std::string, RankStatePtr> views_ GUARDED_BY(mutex_);  // of rank_, by name
  // The newest versions of views that are not taken again yet, since rank_ was cut finer.
  std::map<std::string, RetainedVersionPtr> former_views_ GUARDED_BY(mutex_);
  uint64_t last_connection_ GUARDED_BY(mutex_) = 0;
  struct Link {
    std::shared_ptr<SyncConnection> connection;
    std::string view;
  };
  std::map<ConnectionId, Link> links_ GUARDED_BY(mutex_);
  std::vector<Wait> waits_ GUARDED_BY(mutex_);
  bool known_changed_ GUARDED_BY(mutex_) = false;
  TimePoint await_until_;
  TimePoint look_at_;  // of the next look at the known receivers, at the latest
  std::unique_ptr<ReceiverMemory> memory_;  // used by the ticker's thread while that runs
  TimePoint keepalive_at_;                  // of the ticker
  LoopThread ticker_;                       // keepalives, deadlines of waits
};

}  // namespace dws
