// The sender's part in broadcasts: forms epochs with the receivers that take part, and sends each
// new version's delta to all of them at once. BroadcastState decides; this class carries the
// decisions out on its own thread. A failure here costs time but never a version: receivers fetch
// the objects that do not arrive.
//
//   1. When BroadcastState asks for an epoch, the sender makes an id, offers it with a rank to each
//      member, and joins.
//   2. When all have joined and a version is about to be announced, the sender tells all members in
//      the Sync stream, before the announcement, and then sends the version's object.
//   3. When the epoch ends, the sender aborts its communicator and tells the members to do the
//      same.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/sync_state/broadcast_state.h"
#include "common/transport/nccl/broadcast_channel.h"
#include "proto/sync.pb.h"
#include "sender_daemon/publish/delta_log.h"

namespace dws {

// The connection to one receiver: its Sync stream. Calls never block.
class BroadcastConnection {
 public:
  virtual ~BroadcastConnection() = default;
  // Messages are written in this order, and before a pending announcement. Closes the stream of a
  // receiver that does not read.
  virtual void Say(v1::SyncDown message) = 0;
};

// What metrics and status show.
struct BroadcastView {
  uint64_t epoch = 0;    // number of the ready epoch; 0: none
  size_t members = 0;    // of the ready epoch
  size_t receivers = 0;  // connected, and able to take part
  uint64_t epochs_failed = 0;
  uint64_t sent = 0;  // objects
  uint64_t sent_bytes = 0;
  uint64_t failed = 0;   // not sent completely
  uint64_t skipped = 0;  // no epoch was ready, or the previous object was still being sent
};

// Lifecycle: runs until Stop (or the destructor). Threads: safe from any.
class Broadcaster {
 public:
  // `timeout` limits the time for joining an epoch and for sending a small object. `parts.clock`
  // must outlive it.
  Broadcaster(nccl::BroadcastChannel::Parts parts, Duration timeout);
  ~Broadcaster();
  void Stop();

  // On a receiver's Hello. `nccl_version` 0: the receiver takes no part.
  void OnHello(ConnectionId connection, const std::string& receiver_id, uint32_t nccl_version,
               std::shared_ptr<BroadcastConnection> down);
  void OnDisconnect(ConnectionId connection);
  void OnReport(ConnectionId connection, const v1::BroadcastReport& report);

  // `version` of the stream is about to be announced: begins its broadcast if possible.
  void Offer(const StreamId& stream, const RetainedVersionPtr& version);

  BroadcastView view() const;

 private:
  struct Receiver {
    std::string id;
    std::shared_ptr<BroadcastConnection> down;
  };
  struct Job {
    BroadcastEpoch epoch;
    WeightVersion version;
    ObjectPtr object;
    TimePoint deadline;
  };

  // Returns whether a version can be sent now. If not, counts it as skipped.
  bool CanSend() REQUIRES(mutex_);
  void Run();
  void CarryOut(const std::monostate&) {}
  void CarryOut(const BroadcastState::Form& form);
  void CarryOut(const BroadcastState::End& end);
  void Send(const Job& job);
  // Ends at the deadline, when the current epoch is lost, or when we stop.
  nccl::BroadcastChannel::Until Until(TimePoint deadline);
  void Say(const std::vector<ConnectionId>& to, const v1::SyncDown& message);
  std::shared_ptr<BroadcastConnection> Down(ConnectionId connection) const;

  const nccl::BroadcastChannel::Parts parts_;
  const Clock& clock_;
  const Duration timeout_;
  std::unique_ptr<nccl::BroadcastChannel> channel_;  // used by the thread only

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  BroadcastState state_ GUARDED_BY(mutex_);
  std::map<ConnectionId, Receiver> receivers_ GUARDED_BY(mutex_);
  std::optional<Job> job_ GUARDED_BY(mutex_);  // begun, not yet sent
  bool sending_ GUARDED_BY(mutex_) = false;
  uint64_t sequence_ GUARDED_BY(mutex_) = 0;  // of the last broadcast begun in the epoch
  BroadcastView counts_ GUARDED_BY(mutex_);   // only its totals are used
  std::thread thread_;
};

}  // namespace dws
