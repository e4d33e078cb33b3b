// How full tensors come from one sender: by the best way that works and the rest by the next one,
// which is always said; or every byte by the one way that is required.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/spool/full_assembly.h"
#include "receiver_daemon/transfer/fabric/fabric_way.h"
#include "receiver_daemon/transfer/full_way.h"
#include "receiver_daemon/transfer/grpc/fetch.h"
#include "receiver_daemon/transfer/grpc/link_speed.h"
#include "receiver_daemon/transfer/same_host/host_snapshot.h"

namespace dws {

// How full tensors may come.
struct FullWayRules {
  // If set, no byte comes by another way. What the trainer changes while it is read does not come by
  // the ways that read the sender's memory: then the version fails.
  FullWayChoice required = std::nullopt;
  FabricChoice fabric = {};
  FabricWay::Connect connect = {};  // for tests; none: by libfabric
};

// Lifecycle: as long as the connection's. Threads: safe from any.
class FullWays {
 public:
  // What came so far.
  struct View {
    std::optional<FullWay> last;  // that brought most of the last transfer
    std::string provider;         // of the fabric, if that was tried
    // Why that was not a better one, or why the required one failed last; empty: it was the best.
    std::string reason;
    std::array<uint64_t, kFullWays.size()> bytes = {};  // by FullWay
  };

  // `sender`: for messages. `users`: as HostSnapshot.
  FullWays(std::string sender, FullWayRules rules, AllowedUsers users, ThreadPool& pool,
           const Clock& clock)
      : sender_(std::move(sender)),
        required_(rules.required),
        pool_(pool),
        clock_(clock),
        host_(std::move(users)),
        fabric_(rules.fabric, std::move(rules.connect), clock) {}

  // Brings everything that is missing in `assembly`. `speed` learns from what comes over the
  // connection. Errors as SenderGroup's. UNAVAILABLE, too: the required way has not brought
  // everything; says how much and why, to the sender too (FullWant::refuse). A newer version may come
  // by it.
  Status Read(const SyncTarget& target, Fetcher fetcher, LinkSpeed& speed, FullAssembly& assembly);

  // The sender has welcomed, or has gone.
  void Forget() { host_.Forget(); }

  View view() const;

 private:
  // One transfer.
  struct Transfer;
  // Whether the transfer may come so, and it is worth trying.
  bool MayTry(FullWay way) const;
  // By a way that reads the sender's memory. OK: what it has not brought has changed meanwhile.
  // DATA_LOSS: slices are not as published, which were dropped. What it has brought of complete
  // slices is right, also after an error.
  Status ReadMemory(FullWay way, Transfer& transfer);
  Status ReadSameHost(Transfer& transfer);
  Status ReadFabric(Transfer& transfer);
  // Of an early version, what its capture has brought until it ends; then waits until it is published
  // and described. UNAVAILABLE: it is gone.
  Status ReadEarly(Transfer& transfer);
  // The required way has failed because of `why`.
  Status Missed(const Transfer& transfer, const Status& why);
  // Over the connection.
  Status ReadRest(Transfer& transfer);
  void Note(const Transfer& transfer);

  const std::string sender_;
  const FullWayChoice required_;
  ThreadPool& pool_;
  const Clock& clock_;
  HostSnapshot host_;
  FabricWay fabric_;
  mutable Mutex mutex_;
  View view_ GUARDED_BY(mutex_);
};

}  // namespace dws
