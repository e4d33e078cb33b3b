// The sender's part in broadcasts: forms epochs with the receivers that take part, and sends each
// new version's delta to all of them at once. BroadcastState decides; this class carries it out, on
// a thread of its own. Whatever fails here costs time, and never a version: receivers fetch what
// does not come.
//
//   1. an epoch is due: an id is made and offered with a rank to each member; the sender joins
//   2. all have joined: a version that is about to be announced is begun, to all members, in the
//      Sync stream before its announcement; then its object is sent
//   3. the epoch is over: the communicator is aborted here, and members are told to do the same
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/sync_state/broadcast_state.h"
#include "common/transport/nccl/broadcast_channel.h"
#include "proto/sync.pb.h"
#include "sender_daemon/publish/delta_log.h"

namespace dws {

// The way down to one receiver: its Sync stream. Calls never block.
class BroadcastConnection {
 public:
  virtual ~BroadcastConnection() = default;
  // Written in this order, before an announcement that is due. Closes the stream of a receiver that
  // reads nothing.
  virtual void Say(v1::SyncDown message) = 0;
};

// As others see it.
struct BroadcastView {
  uint64_t epoch = 0;    // the one that is ready; 0: none
  size_t members = 0;    // of it
  size_t receivers = 0;  // connected, and able to take part
  uint64_t epochs_failed = 0;
  uint64_t sent = 0;  // objects
  uint64_t sent_bytes = 0;
  uint64_t failed = 0;   // not sent to the end
  uint64_t skipped = 0;  // no epoch was ready, or the object before was on its way
};

// Lifecycle: works until Stop (or the destructor). Threads: safe from any.
class Broadcaster {
 public:
  // `timeout`: for joining an epoch, and for a small object to arrive. `parts.clock` outlives it.
  Broadcaster(nccl::BroadcastChannel::Parts parts, Duration timeout);
  ~Broadcaster();
  void Stop();

  // A receiver's Hello; `nccl_version` 0: it takes no part.
  void OnHello(ConnectionId connection, const std::string& receiver_id, uint32_t nccl_version,
               std::shared_ptr<BroadcastConnection> down);
  void OnDisconnect(ConnectionId connection);
  void OnReport(ConnectionId connection, const v1::BroadcastReport& report);

  // `version` of the stream is about to be announced: begins its broadcast, if one can be.
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

  // Whether a version may go now; counts it as skipped otherwise.
  bool CanSend() REQUIRES(mutex_);
  void Run();
  void CarryOut(const std::monostate&) {}
  void CarryOut(const BroadcastState::Form& form);
  void CarryOut(const BroadcastState::End& end);
  void Send(const Job& job);
  // Or until the epoch under way is lost, or we stop.
  nccl::BroadcastChannel::Until Until(TimePoint deadline);
  void Say(const std::vector<ConnectionId>& to, const v1::SyncDown& message);
  std::shared_ptr<BroadcastConnection> Down(ConnectionId connection) const;

  const nccl::BroadcastChannel::Parts parts_;
  const Clock& clock_;
  const Duration timeout_;
  std::unique_ptr<nccl::BroadcastChannel> channel_;  // of the thread

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  BroadcastState state_ GUARDED_BY(mutex_);
  std::map<ConnectionId, Receiver> receivers_ GUARDED_BY(mutex_);
  std::optional<Job> job_ GUARDED_BY(mutex_);  // begun, and to be sent
  bool sending_ GUARDED_BY(mutex_) = false;
  uint64_t sequence_ GUARDED_BY(mutex_) = 0;  // of the last one begun in the epoch
  BroadcastView counts_ GUARDED_BY(mutex_);   // the totals of it
  std::thread thread_;
};

}  // namespace dws
