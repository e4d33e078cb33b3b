// Everything the sender knows of its receivers: their connections, the pure AnnouncerState behind a
// mutex, and the Waits of the trainer. Decisions are AnnouncerState's; this class carries them to
// connections and waiters.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/sync_state/announcer_state.h"
#include "sender_daemon/rank_state.h"

namespace dws {

// One Sync stream as the hub sees it. Calls never block. They say only what is due: the message is
// made from ReceiverHub::Current() when it is written, so a newer announcement replaces an unsent
// older one.
class SyncConnection {
 public:
  virtual ~SyncConnection() = default;
  virtual void WelcomeDue() = 0;  // and an announcement after it
  virtual void AnnounceDue() = 0;
  virtual void KeepaliveDue() = 0;
  virtual void Close(const Status& reason) = 0;
};

struct WaitOutcome {
  std::vector<std::string> committed;
  std::optional<TimePoint> met_at;  // when the last of them committed
};

// Threads: safe from any. Callbacks run on the caller's or the hub's own thread, without locks.
class ReceiverHub {
 public:
  ReceiverHub(const Clock& clock, std::string job_id);
  ~ReceiverHub();

  // Ends all waits with UNAVAILABLE and closes all connections.
  void Stop();

  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED: the receiver is refused.
  Result<ConnectionId> Connect(const std::string& job_id, const std::string& receiver_id,
                               std::shared_ptr<SyncConnection> connection);
  void Disconnect(ConnectionId connection);
  Nonce NextNonce(ConnectionId connection, bool announcement);
  void OnHave(ConnectionId connection, const StreamId& stream, WeightVersion version);
  void OnStaged(ConnectionId connection, Nonce nonce, const StreamId& stream,
                WeightVersion version);
  void OnCommitted(ConnectionId connection, const StreamId& stream,
                   const AcknowledgedCommit& report);
  // Whether it answers the last announcement: an older one's counts, and changes nothing.
  bool OnNack(ConnectionId connection, Nonce nonce, const StreamId& stream,
              const std::string& error);

  // The trainer registered: everyone is welcomed (again) and told what can be served.
  void Welcome(RankStatePtr state);
  // The state is served no more: waits end with ABORTED, and receivers connect anew.
  void Forget();
  // A version was published in the current state.
  void Announce();
  RankStatePtr Current() const;  // null before the first registration, and once forgotten

  struct Wait {
    WeightVersion version;
    WaitCondition condition;
    TimePoint deadline;
    std::function<bool()> cancelled;
    std::function<void(Result<WaitOutcome>)> done;  // called once
  };
  void AddWait(Wait wait);

  std::map<std::string, AnnouncerState::Receiver> Receivers() const;
  const Clock& clock() const { return clock_; }

 private:
  void Run();
  // A receiver cannot have what was never published.
  bool Plausible(const StreamId& stream, WeightVersion version) const REQUIRES(mutex_);
  // Takes out the waits that are over, with their results.
  using Finished = std::vector<std::pair<Wait, Result<WaitOutcome>>>;
  Finished TakeFinished() REQUIRES(mutex_);
  void FinishWaits();
  std::vector<std::shared_ptr<SyncConnection>> Connections() const;
  std::string Unmet(WeightVersion version) const REQUIRES(mutex_);

  const Clock& clock_;
  const std::string job_id_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  AnnouncerState state_ GUARDED_BY(mutex_);
  RankStatePtr rank_ GUARDED_BY(mutex_);
  uint64_t last_connection_ GUARDED_BY(mutex_) = 0;
  std::map<ConnectionId, std::shared_ptr<SyncConnection>> connections_ GUARDED_BY(mutex_);
  std::vector<Wait> waits_ GUARDED_BY(mutex_);
  std::thread ticker_;  // keepalives, deadlines of waits
};

}  // namespace dws
