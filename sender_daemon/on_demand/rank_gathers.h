// The gathers of a rank that has joined: each of its calls waits on a thread of its own, and leases
// last until the rank gives them back, or is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "proto/on_demand.pb.h"
#include "sender_daemon/on_demand/gather/gather.h"
#include "sender_daemon/on_demand/gather/unit_arena.h"

namespace dws {

// Lifecycle: one for each Join; Stop, or the destructor, ends its gathers and leases. Threads: safe
// from any.
class RankGathers {
 public:
  struct Options {
    StreamId stream;
    size_t prefetch = 1;
    Gather::Options gather;
  };

  // INVALID_ARGUMENT: as Gather::Create. `owners`, `pool` and `clock` outlive it.
  static Result<std::unique_ptr<RankGathers>> Create(const Options& options, HostRegion arena,
                                                     OwnerLinks& owners, ThreadPool& pool,
                                                     const Clock& clock);
  ~RankGathers();

  // Calls `done` once, from any thread. `given_up` tells that nobody waits for it. The same
  // lease once more gets the same bytes, until it is released. INVALID_ARGUMENT: it is that of
  // another unit. Others: those of UnitArena::Take.
  using Done = std::function<void(const Status& status)>;
  void Take(const v1::GatherRequest& request, TimePoint deadline, const Cancellation& given_up,
            v1::GatherReply& reply, const Done& done);
  // Ends gathers, present and future, and does not wait for them.
  void Cancel() { gather_->Stop(); }
  void Stop();

  std::vector<Gather::Wait> waits() const { return gather_->waits(); }
  std::vector<SourceChain::Total> totals() const { return gather_->totals(); }

 private:
  RankGathers(const Options& options, HostRegion arena, std::unique_ptr<Gather> gather,
              const Clock& clock);
  // What the rank does with a lease.
  struct Use {
    UnitAt unit;
    size_t calls = 0;  // that are under way
    bool released = false;
    std::optional<UnitArena::Lease> bytes;
  };

  Result<UnitArena::Lease> TakeNow(const v1::GatherRequest& request, const UnitAt& unit,
                                   const Gather::Wanted& wanted);
  // Counts a call in. False: the lease has its bytes, which are in the reply.
  Result<bool> Begin(uint64_t lease, const UnitAt& unit, v1::GatherReply& reply);
  // Counts it out, with what it has brought. Returns its answer.
  Status End(uint64_t lease, const Status& status, std::optional<UnitArena::Lease> bytes,
             v1::GatherReply& reply);
  // The arena, which is made when all owners have registered.
  Result<UnitArena*> Arena(const Gather::Wanted& wanted);
  void Release(const v1::GatherRequest& request);

  const Options options_;
  const Clock& clock_;
  const std::unique_ptr<Gather> gather_;
  Mutex making_;
  Mutex mutex_;
  HostRegion memory_ GUARDED_BY(making_);
  std::unique_ptr<UnitArena> arena_ GUARDED_BY(making_);
  uint64_t microbatch_ GUARDED_BY(mutex_) = 0;  // the lease that has begun it
  std::map<uint64_t, Use> leases_ GUARDED_BY(mutex_);
  Executor calls_;
};

}  // namespace dws
