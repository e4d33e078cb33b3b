// How full tensors come from one sender: by the best way that works, the rest by the next one, never
// by another than the one that is required, and never without saying so.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/spool/full_assembly.h"
#include "receiver_daemon/transfer/full_way.h"
#include "receiver_daemon/transfer/grpc/fetch.h"
#include "receiver_daemon/transfer/same_host/host_snapshot.h"

namespace dws {

// Lifecycle: as long as the connection's. Threads: safe from any.
class FullWays {
 public:
  // What came so far.
  struct View {
    std::optional<FullWay> last;  // that brought most of the last transfer
    std::string reason;           // why that was not a better one; empty: it was the best
    std::array<uint64_t, kFullWays.size()> bytes = {};  // by FullWay
  };

  // `sender`: for messages. `users`: as HostSnapshot.
  FullWays(std::string sender, FullWayChoice required, AllowedUsers users, ThreadPool& pool)
      : sender_(std::move(sender)), required_(required), pool_(pool), host_(std::move(users)) {}

  // Brings everything that is missing in `assembly`. Errors as SenderGroup's. UNAVAILABLE, too: the
  // required way does not work; says why.
  Status Read(const SyncTarget& target, Fetcher fetcher, FullAssembly& assembly);

  // The sender has welcomed, or has gone.
  void Forget() { host_.Forget(); }

  View view() const;

 private:
  // What a way did. What it has brought is right.
  struct Passed {
    bool works = false;  // what it has not brought has changed meanwhile, and has to come as a copy
    Status why;          // why it did not bring all
  };
  Passed ReadSameHost(const SyncTarget& target, Fetcher& fetcher, FullAssembly& assembly);
  void Note(std::array<uint64_t, kFullWays.size()> bytes, const Status& passed);

  const std::string sender_;
  const FullWayChoice required_;
  ThreadPool& pool_;
  HostSnapshot host_;
  mutable Mutex mutex_;
  View view_ GUARDED_BY(mutex_);
};

}  // namespace dws
