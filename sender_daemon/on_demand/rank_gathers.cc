#include "sender_daemon/on_demand/rank_gathers.h"

#include <utility>

#include "common/model/limits.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {

Result<std::unique_ptr<RankGathers>> RankGathers::Create(const Options& options, HostRegion arena,
                                                         OwnerLinks& owners, ThreadPool& pool,
                                                         const Clock& clock) {
  DWS_ASSIGN_OR_RETURN(auto made, Gather::Create(options.gather, owners, pool, clock));
  return std::unique_ptr<RankGathers>(
      new RankGathers(options, std::move(arena), std::move(made), clock));
}

RankGathers::RankGathers(const Options& options, HostRegion arena, std::unique_ptr<Gather> gather,
                         const Clock& clock)
    : options_(options),
      clock_(clock),
      gather_(std::move(gather)),
      memory_(std::move(arena)),
      calls_(limits::kGatherThreads, limits::kGatherCallsMax) {}

RankGathers::~RankGathers() { Stop(); }

void RankGathers::Stop() {
  gather_->Stop();
  {
    MutexLock lock(making_);
    if (arena_ != nullptr) arena_->Stop();
  }
  calls_.Stop();
  MutexLock lock(mutex_);
  leases_.clear();
}

Result<UnitArena*> RankGathers::Arena(const Gather::Wanted& wanted) {
  MutexLock lock(making_);
  if (arena_ != nullptr) return arena_.get();
  DWS_ASSIGN_OR_RETURN(arena_, UnitArena::Create(std::move(memory_), options_.prefetch, *gather_,
                                                 clock_, options_.stream, wanted));
  return arena_.get();
}

void RankGathers::Release(const v1::GatherRequest& request) {
  std::vector<UnitArena::Lease> ended;  // beyond the lock
  MutexLock lock(mutex_);
  for (const uint64_t number : request.released()) {
    const auto lease = leases_.find(number);
    if (lease == leases_.end()) continue;
    ended.push_back(std::move(lease->second));
    leases_.erase(lease);
  }
}

void RankGathers::Take(const v1::GatherRequest& request, TimePoint deadline,
                       const Cancellation& given_up, v1::GatherReply& reply, const Done& done) {
  Release(request);
  // Answers also if it is dropped.
  struct Answer {
    explicit Answer(Done tell) : done(std::move(tell)) {}
    Answer(const Answer&) = delete;
    ~Answer() { done(status); }
    const Done done;
    Status status = ResourceExhaustedError("{} gathers of this rank wait, or it is gone",
                                           limits::kGatherCallsMax);
  };
  const auto answer = std::make_shared<Answer>(done);
  (void)calls_.Post([this, &request, deadline, &given_up, &reply, answer] {
    answer->status = TakeNow(request, deadline, given_up, reply);
  });
}

Status RankGathers::TakeNow(const v1::GatherRequest& request, TimePoint deadline,
                            const Cancellation& given_up, v1::GatherReply& reply) {
  const Gather::Wanted wanted{.deadline = deadline, .cancellation = &given_up};
  DWS_ASSIGN_OR_RETURN(UnitArena* const arena, Arena(wanted));
  if (request.begins_microbatch()) arena->BeginMicrobatch();
  const UnitAt unit{.unit = UnitIndex(request.unit()),
                    .at = {.stream = options_.stream, .version = WeightVersion(request.version())}};
  DWS_ASSIGN_OR_RETURN(UnitArena::Lease lease, arena->Take(unit, wanted));
  if (given_up.cancelled()) return CancelledError("the rank has given the gather up");
  reply.set_offset_bytes(lease.offset());
  reply.set_size_bytes(lease.bytes().size());
  MutexLock lock(mutex_);
  reply.set_lease(++last_lease_);
  leases_.emplace(last_lease_, std::move(lease));
  return OkStatus();
}

}  // namespace dws
