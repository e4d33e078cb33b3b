// One gather:
//   1. the plan, from the layouts of all owners; made again when a layout has changed
//   2. for each owner that has a part, at the same time as the others: wait until it has published
//      the version, and ask for the digests of its slices, once a version
//   3. let the chain of sources fill the part's places, slice by slice proved by these digests
// The first error ends the other parts.
#include "sender_daemon/on_demand/gather/gather.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "common/model/limits.h"
#include "common/sources/sender/same_host_source.h"
#include "sender_daemon/on_demand/gather/host_cache_source.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

// How often a plan is made again because an owner has refined its layout meanwhile.
constexpr int kPlansMax = 3;

}  // namespace

// One try to fill a unit's buffer by one plan. Shared by the threads that read its parts.
struct Gather::Attempt {
  const UnitAt& unit;
  const Planned& planned;
  const MutableByteSpan to;
  const Wanted& wanted;
  Mutex mutex = {};
  CondVar done = {};
  size_t reading GUARDED_BY(mutex) = 0;
  Status first GUARDED_BY(mutex) = OkStatus();
  std::atomic<bool> failed{false};

  // Keeps the first error, and then ends the other parts, whose errors say less.
  void Fail(const Status& status) REQUIRES(mutex) {
    first.Update(status);
    if (!status.ok()) failed = true;
  }
};

Result<std::unique_ptr<Gather>> Gather::Create(Options options, OwnerLinks& owners,
                                               ThreadPool& pool, const Clock& clock) {
  if (options.units.empty() || options.units.size() > limits::kTrainUnitsMax) {
    return InvalidArgumentError("{} units, expected 1 to {}", options.units.size(),
                                limits::kTrainUnitsMax);
  }
  static constexpr std::string_view kWays[] = {"same-host", "host-cache", "fabric", "grpc"};
  if (options.only.has_value() && std::ranges::find(kWays, *options.only) == std::end(kWays)) {
    return InvalidArgumentError("expected same-host, host-cache, fabric or grpc, found '{}'",
                                *options.only);
  }
  if (options.only == "host-cache" && options.cache == nullptr) {
    return InvalidArgumentError("only host-cache, but this sender has no --host-cache-bytes");
  }
  std::set<std::string_view> names;
  for (const UnitSpec& unit : options.units) {
    if (!names.insert(unit.name).second) {
      return InvalidArgumentError("two units have the name '{}'", unit.name);
    }
  }
  return std::unique_ptr<Gather>(new Gather(std::move(options), owners, pool, clock));
}

Gather::Gather(Options options, OwnerLinks& owners, ThreadPool& pool, const Clock& clock)
    : options_(std::move(options)),
      owners_(owners),
      clock_(clock),
      readers_(limits::kOwnersAtOnce, limits::kGathersMax * limits::kTrainRanksMax) {
  std::vector<std::unique_ptr<Source>> sources;
  sources.push_back(std::make_unique<SameHostSource>(owners_, pool, stopped_));
  if (options_.cache != nullptr) {
    sources.push_back(std::make_unique<HostCacheSource>(*options_.cache, owners_, pool));
  }
  PartReader::AddFarSources(owners_, options_.fabric, clock_, sources);
  reader_ = std::make_unique<PartReader>(
      PartReader::Options{.only = options_.only, .spool_folder = options_.spool_folder},
      std::move(sources), owners_, stopped_);
}

Gather::~Gather() { Stop(); }

void Gather::Stop() {
  stopped_.Cancel();
  owners_.changed().Notify();
}

std::string Gather::NameOf(UnitIndex unit) const {
  return fmt::format("unit '{}'", options_.units[unit.value()].name);
}

Status Gather::Continues(const Wanted& wanted) const {
  const bool given_up = wanted.cancellation != nullptr && wanted.cancellation->cancelled();
  if (given_up || stopped_.cancelled()) return CancelledError("given up");
  if (clock_.Now() >= wanted.deadline) return DeadlineExceededError("the time is over");
  return OkStatus();
}

Status Gather::Await(const Wanted& wanted, const Look& look) {
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = waits_begun_++;
  }
  Status end = OkStatus();
  for (uint64_t seen = 0;;) {
    const uint64_t now = owners_.changed().WaitBeyond(seen, Duration::zero());
    auto waits = look();
    if (!waits.ok() || waits->empty()) {
      end = waits.status();
      break;
    }
    if (const Status on = Continues(wanted); !on.ok()) {
      end =
          MakeStatus(on.code(), fmt::format("{}: {}", waits->front().owner, waits->front().reason));
      break;
    }
    {
      MutexLock lock(mutex_);
      waits_[number] = *std::move(waits);
    }
    // A cancellation does not wake this.
    seen = now;
    owners_.changed().WaitBeyond(seen,
                                 std::min<Duration>(limits::kTick, wanted.deadline - clock_.Now()));
  }
  MutexLock lock(mutex_);
  waits_.erase(number);
  return end;
}

std::vector<Gather::Wait> Gather::waits() const {
  std::vector<Wait> waits;
  MutexLock lock(mutex_);
  for (const auto& [number, some] : waits_) waits.insert(waits.end(), some.begin(), some.end());
  return waits;
}

Result<Gather::Planned> Gather::MakePlan(UnitIndex unit, const StreamId& stream,
                                         const Wanted& wanted) {
  if (unit.value() >= options_.units.size()) {
    return InvalidArgumentError("unit {} of {}", unit.value(), options_.units.size());
  }
  std::vector<std::shared_ptr<const RankLayout>> layouts(owners_.size());
  const auto look = [&]() -> Result<std::vector<Wait>> {
    std::vector<Wait> waits;
    for (uint32_t r = 0; r < layouts.size(); ++r) {
      const OwnerLink& link = owners_.owner(TrainerRank(r));
      auto owner = link.Registered(stream);
      if (absl::IsUnavailable(owner.status())) {
        waits.push_back({.unit = NameOf(unit),
                         .owner = link.name(),
                         .reason = std::string(Message(owner.status()))});
        continue;
      }
      if (!owner.ok()) return Annotate(owner.status(), link.name());
      if (owner->world_size != layouts.size()) {
        return FailedPreconditionError("{}: its trainer has {} ranks, this one {}", link.name(),
                                       owner->world_size, layouts.size());
      }
      layouts[r] = owner->layout;
    }
    return waits;
  };
  if (const Status known = Await(wanted, look); !known.ok()) {
    return Annotate(known, NameOf(unit));
  }
  {
    MutexLock lock(mutex_);
    const auto found = plans_.find(unit);
    if (found != plans_.end() && found->second.layouts == layouts) return found->second;
  }
  DWS_ASSIGN_OR_RETURN(UnitPlan plan, UnitPlan::Make(options_.units[unit.value()], layouts));
  Planned planned{.layouts = std::move(layouts),
                  .plan = std::make_shared<const UnitPlan>(std::move(plan))};
  MutexLock lock(mutex_);
  return plans_[unit] = std::move(planned);
}

Result<std::shared_ptr<const UnitPlan>> Gather::Plan(UnitIndex unit, const StreamId& stream,
                                                     const Wanted& wanted) {
  DWS_ASSIGN_OR_RETURN(Planned planned, MakePlan(unit, stream, wanted));
  return planned.plan;
}

Result<std::vector<uint64_t>> Gather::UnitBytes(const StreamId& stream, const Wanted& wanted) {
  std::vector<uint64_t> bytes;
  for (uint32_t unit = 0; unit < options_.units.size(); ++unit) {
    DWS_ASSIGN_OR_RETURN(const auto plan, Plan(UnitIndex(unit), stream, wanted));
    bytes.push_back(plan->size_bytes());
  }
  return bytes;
}

Status Gather::ReadPart(const UnitPlan::Part& part, const SenderWelcome& owner, Attempt& attempt) {
  const VersionAt& at = attempt.unit.at;
  const OwnerLink& link = owners_.owner(part.owner);
  const RankLayout& planned = *attempt.planned.layouts[part.owner.value()];
  if (owner.layout->signature() != planned.signature()) {
    return AbortedError("{}: its layout was refined", link.name());
  }
  const PlacedMemory placed{.memory = attempt.to, .places = part.places};
  const Status read =
      reader_->Read({.at = at,
                     .owner = part.owner,
                     .slices = part.slices,
                     .placed = placed,
                     .wanted = [&] { return !attempt.failed && Continues(attempt.wanted).ok(); }},
                    owner);
  if (absl::IsCancelled(read)) {  // by this gather, whose reason says more
    const Status on = Continues(attempt.wanted);
    if (!on.ok()) return Annotate(on, link.name());
  }
  return Annotate(read, link.name());
}

Status Gather::ReadParts(Attempt& attempt) {
  const auto read = [this, &attempt](const UnitPlan::Part& part, const SenderWelcome& owner) {
    const Status status = attempt.failed ? OkStatus() : ReadPart(part, owner, attempt);
    MutexLock lock(attempt.mutex);
    attempt.Fail(status);
    --attempt.reading;
    attempt.done.NotifyAll();
    owners_.changed().Notify();  // the thread below may wait for another owner
  };
  std::vector<const UnitPlan::Part*> pending;
  for (const UnitPlan::Part& part : attempt.planned.plan->parts()) pending.push_back(&part);
  // Waits here, so that owners that have not published keep no reader busy.
  const auto look = [&]() -> Result<std::vector<Wait>> {
    std::vector<Wait> waits;
    std::vector<const UnitPlan::Part*> waiting;
    for (const UnitPlan::Part* const part : pending) {
      if (attempt.failed) return CancelledError("another part has failed");
      const OwnerLink& link = owners_.owner(part->owner);
      const auto owner = link.Has(attempt.unit.at);
      if (absl::IsUnavailable(owner.status())) {
        waiting.push_back(part);
        waits.push_back({.unit = NameOf(attempt.unit.unit),
                         .owner = link.name(),
                         .reason = std::string(Message(owner.status()))});
        continue;
      }
      if (!owner.ok()) return Annotate(owner.status(), link.name());
      {
        MutexLock lock(attempt.mutex);
        ++attempt.reading;
      }
      // The last part is read by this thread, and so is what the readers have no room for.
      const bool last = part == pending.back() && waiting.empty();
      if (last || !readers_.Post([&read, part, owner = *owner] { read(*part, owner); })) {
        read(*part, *owner);
      }
    }
    pending = std::move(waiting);
    return waits;
  };
  const Status awaited = Await(attempt.wanted, look);
  MutexLock lock(attempt.mutex);
  attempt.Fail(awaited);
  while (attempt.reading > 0) attempt.done.Wait(attempt.mutex);
  return attempt.first;
}

Status Gather::Run(const UnitAt& unit, MutableByteSpan to, const Wanted& wanted) {
  for (int plans = 1;; ++plans) {
    DWS_ASSIGN_OR_RETURN(const Planned planned, MakePlan(unit.unit, unit.at.stream, wanted));
    if (to.size() != planned.plan->size_bytes()) {
      return InvalidArgumentError("{} has {} bytes, the buffer for it {}", NameOf(unit.unit),
                                  planned.plan->size_bytes(), to.size());
    }
    Attempt attempt{.unit = unit, .planned = planned, .to = to, .wanted = wanted};
    const Status read = ReadParts(attempt);
    if (read.ok()) return OkStatus();
    const Status named =
        Annotate(read, fmt::format("{} at version {}", NameOf(unit.unit), unit.at.version.value()));
    if (!absl::IsAborted(read) || plans == kPlansMax) return named;
    // It may be that only the plan is old.
    DWS_ASSIGN_OR_RETURN(const Planned now, MakePlan(unit.unit, unit.at.stream, wanted));
    if (now.layouts == planned.layouts) return named;
  }
}

}  // namespace dws
