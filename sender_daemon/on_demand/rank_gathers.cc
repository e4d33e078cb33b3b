#include "sender_daemon/on_demand/rank_gathers.h"

#include <algorithm>
#include <utility>

#include "common/model/limits.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

void FillReply(const UnitArena::Lease& lease, v1::GatherReply& reply) {
  reply.set_offset_bytes(lease.offset());
  reply.set_size_bytes(lease.bytes().size());
}

}  // namespace

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
  std::vector<std::optional<UnitArena::Lease>> ended;  // beyond the lock
  MutexLock lock(mutex_);
  for (const uint64_t number : request.released()) {
    const auto lease = leases_.find(number);
    if (lease == leases_.end()) continue;
    Use& use = lease->second;
    use.released = true;
    ended.push_back(std::exchange(use.bytes, std::nullopt));
    if (use.calls == 0) leases_.erase(lease);
  }
}

void RankGathers::Take(const v1::GatherRequest& request, TimePoint deadline,
                       const Cancellation& given_up, v1::GatherReply& reply, const Done& done) {
  Release(request);
  const UnitAt unit{.unit = UnitIndex(request.unit()),
                    .at = {.stream = options_.stream, .version = WeightVersion(request.version())}};
  const Result<bool> begun = Begin(request.lease(), unit, reply);
  if (!begun.ok() || !*begun) return done(begun.status());
  // Answers also if it is dropped.
  struct Answer {
    explicit Answer(std::function<void(Answer&)> tell) : done(std::move(tell)) {}
    Answer(const Answer&) = delete;
    ~Answer() { done(*this); }
    const std::function<void(Answer&)> done;
    Status status = ResourceExhaustedError("{} gathers of this rank wait, or it is gone",
                                           limits::kGatherCallsMax);
    std::optional<UnitArena::Lease> bytes;
  };
  const auto answer =
      std::make_shared<Answer>([this, lease = request.lease(), &reply, done](Answer& ended) {
        done(End(lease, ended.status, std::move(ended.bytes), reply));
      });
  (void)calls_.Post([this, &request, unit, deadline, &given_up, answer] {
    Result<UnitArena::Lease> taken =
        TakeNow(request, unit, {.deadline = deadline, .cancellation = &given_up});
    answer->status = taken.status();
    if (!taken.ok()) return;
    if (given_up.cancelled()) {
      answer->status = CancelledError("the rank has given the gather up");
    } else {
      answer->bytes.emplace(*std::move(taken));
    }
  });
}

Result<UnitArena::Lease> RankGathers::TakeNow(const v1::GatherRequest& request, const UnitAt& unit,
                                              const Gather::Wanted& wanted) {
  DWS_ASSIGN_OR_RETURN(UnitArena* const arena, Arena(wanted));
  if (request.begins_microbatch()) {
    MutexLock lock(mutex_);
    if (microbatch_ < request.lease()) arena->BeginMicrobatch();
    microbatch_ = std::max(microbatch_, request.lease());
  }
  return arena->Take(unit, wanted);
}

Result<bool> RankGathers::Begin(uint64_t lease, const UnitAt& unit, v1::GatherReply& reply) {
  if (lease == 0) return InvalidArgumentError("a gather without a lease");
  MutexLock lock(mutex_);
  Use& use = leases_.try_emplace(lease, Use{.unit = unit}).first->second;
  if (use.unit != unit) {
    return InvalidArgumentError("lease {} is of unit {} at version {}, and unit {} at {} is wanted",
                                lease, use.unit.unit.value(), use.unit.at.version.value(),
                                unit.unit.value(), unit.at.version.value());
  }
  if (use.bytes.has_value()) {
    FillReply(*use.bytes, reply);
    return false;
  }
  ++use.calls;
  return true;
}

Status RankGathers::End(uint64_t lease, const Status& status, std::optional<UnitArena::Lease> bytes,
                        v1::GatherReply& reply) {
  // Bytes that are not kept end with the parameter, beyond the lock.
  MutexLock lock(mutex_);
  const auto found = leases_.find(lease);
  Use& use = found->second;
  --use.calls;
  const bool released = use.released;
  if (!released && bytes.has_value()) {
    if (!use.bytes.has_value()) use.bytes.emplace(*std::move(bytes));
    FillReply(*use.bytes, reply);
  }
  if (use.calls == 0 && !use.bytes.has_value()) leases_.erase(found);
  return released ? CancelledError("the rank has released the lease") : status;
}

}  // namespace dws
