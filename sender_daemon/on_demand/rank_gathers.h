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

  // Calls `done` once, from another thread. `given_up` tells that nobody waits for it.
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
  Status TakeNow(const v1::GatherRequest& request, TimePoint deadline, const Cancellation& given_up,
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
  uint64_t last_lease_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, UnitArena::Lease> leases_ GUARDED_BY(mutex_);
  Executor calls_;
};

}  // namespace dws
