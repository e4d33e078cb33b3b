// A receiver's part in the broadcasts of one sender: joins the epochs that are offered, takes part
// in every broadcast, and keeps the objects until a fetch takes them. An object that does not
// arrive intact is fetched over gRPC instead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mailbox.h"
#include "common/base/threads/mutex.h"
#include "common/model/limits.h"
#include "common/transport/nccl/broadcast_channel.h"
#include "proto/sync.pb.h"
#include "receiver_daemon/transfer/broadcast/broadcast_cache.h"

namespace dws {

// Lifecycle: works until Stop (or the destructor). Threads: safe from any; messages come from one,
// in their order.
class BroadcastMember {
 public:
  struct Options {
    std::string sender;      // its address, for the log
    uint64_t bytes_max = 0;  // larger objects are not kept
  };
  // Its state and counters.
  struct View {
    uint64_t epoch = 0;  // joined; 0: none
    uint64_t received = 0;
    uint64_t received_bytes = 0;
    uint64_t failed = 0;  // begun and not received, or damaged
  };

  // `report` sends a message to the sender; never blocks. `parts.clock` outlives it.
  BroadcastMember(nccl::BroadcastChannel::Parts parts, Options options,
                  std::function<void(v1::SyncUp)> report);
  ~BroadcastMember();
  // Stops taking part; Take no longer waits. Does not block.
  void Close();
  // Calls Close, then waits until the thread has ended.
  void Stop();

  // The NCCL version that the Hello states.
  uint32_t nccl_version() const { return parts_.api->version(); }

  // Messages of the Sync stream; never block. INVALID_ARGUMENT: nonsense. RESOURCE_EXHAUSTED: too
  // many wait. Both end the stream.
  Status OnOffer(const v1::BroadcastOffer& offer);
  Status OnBegin(const v1::BroadcastBegin& begin);
  Status OnEnd(const v1::BroadcastEnd& end);
  // The stream has ended, and all its epochs with it.
  void OnDisconnect();

  // See BroadcastCache::Take.
  std::optional<std::vector<std::byte>> Take(const BroadcastKey& key,
                                             const std::function<bool()>& wanted) {
    return cache_.Take(key, wanted);
  }

  View view() const;

 private:
  struct Join {
    uint64_t epoch;
    nccl::BroadcastChannel::Terms terms;
    TimePoint deadline;
  };
  struct Receive {
    uint64_t epoch;
    BroadcastKey key;
    uint64_t object_bytes;
    uint64_t checksum;
    TimePoint deadline;
  };
  struct Leave {
    uint64_t epoch;
  };
  struct Task {
    uint64_t connection;
    std::variant<Join, Receive, Leave> what;
  };

  Status Push(std::variant<Join, Receive, Leave> what) REQUIRES(mutex_);
  void Run();
  void Do(uint64_t connection, const Join& join);
  void Do(uint64_t connection, const Receive& receive);
  void Do(uint64_t connection, const Leave& leave);
  Result<std::vector<std::byte>> TakePart(const Receive& receive);
  // Until `deadline`, or until `epoch` is left.
  nccl::BroadcastChannel::Until Until(TimePoint deadline, uint64_t epoch);
  // Returns whether `epoch` is the one to be in.
  bool Wanted(uint64_t epoch) const;
  // The epoch failed here, with this status.
  void Abandon(uint64_t connection, uint64_t epoch, const Status& status);
  void Report(uint64_t connection, uint64_t epoch, v1::BroadcastReport::State state,
              const Status& status);

  const nccl::BroadcastChannel::Parts parts_;
  const Options options_;
  const Clock& clock_;
  const std::function<void(v1::SyncUp)> report_;
  BroadcastCache cache_;
  std::unique_ptr<nccl::BroadcastChannel> channel_;  // used by the thread only

  Mailbox<Task> tasks_{limits::kBroadcastQueueMax};
  mutable Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t connection_ GUARDED_BY(mutex_) = 0;  // grows with every stream's end
  uint64_t wanted_ GUARDED_BY(mutex_) = 0;      // the epoch to be in; 0: none
  uint64_t sequence_ GUARDED_BY(mutex_) = 0;    // of the last broadcast begun in that
  View view_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace dws
