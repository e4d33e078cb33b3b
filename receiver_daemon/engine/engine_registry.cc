#include "receiver_daemon/engine/engine_registry.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/memory/cuda/ipc/region_import.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Each place where weights of an attach are, once.
std::vector<std::string> MemoryOf(const AttachPlan& plan) {
  std::set<std::string> memory;
  for (const RegionHandle& region : plan.regions) {
    memory.insert(region.cuda.has_value() ? region.cuda->device_uuid : "host");
  }
  return {memory.begin(), memory.end()};
}

}  // namespace

Status EngineRegistry::CheckOthers(const AttachPlan& plan) const {
  DWS_RETURN_IF_ERROR(ended_);
  DWS_CHECK(plan.layouts != nullptr);
  if (const auto found = ranks_.find(plan.engine_rank); found != ranks_.end()) {
    return AlreadyExistsError(
        "engine rank {} is attached by {}: end that engine first, or give this one another rank",
        plan.engine_rank, found->second.plan.client);
  }
  std::vector<const EngineMapping*> mappings = {&plan.mapping};
  for (const auto& [rank, other] : ranks_) {
    if (other.plan.engine_world_size != plan.engine_world_size) {
      return InvalidArgumentError(
          "engine rank {} says the engine has {} ranks, rank {} ({}) says {}", plan.engine_rank,
          plan.engine_world_size, rank, other.plan.client, other.plan.engine_world_size);
    }
    if (other.plan.commits_on_request != plan.commits_on_request) {
      return InvalidArgumentError(
          "engine rank {} has commits_on_request={}, rank {} ({}) has {}: expected the same of all "
          "ranks of an engine",
          plan.engine_rank, plan.commits_on_request, rank, other.plan.client,
          other.plan.commits_on_request);
    }
    if (!other.plan.layouts->SameAs(*plan.layouts)) continue;  // Follow looks at it soon
    mappings.push_back(&other.plan.mapping);
  }
  if (coverage_ == Coverage::kShare && plan.commits_on_request) {
    return InvalidArgumentError(
        "engine rank {} has commits_on_request, and this receiver is in a commit group, whose "
        "leader says when a version is committed: attach without it",
        plan.engine_rank);
  }
  if (coverage_ == Coverage::kShare && plan.layouts->slice_count() > limits::kGroupSlicesMax) {
    return InvalidArgumentError("the trainer's layout has {} slices, a commit group supports {}",
                                plan.layouts->slice_count(), limits::kGroupSlicesMax);
  }
  if (mappings.size() < plan.engine_world_size)
    return OkStatus();  // coverage is checked for the last rank
  return CheckCoverage(*plan.layouts, mappings, coverage_);
}

Result<Generation> EngineRegistry::Reserve(AttachPlan plan) {
  MutexLock lock(mutex_);
  DWS_RETURN_IF_ERROR(CheckOthers(plan));
  const Generation generation = next_generation_;
  DWS_CHECK(Find(generation) == nullptr);
  next_generation_ = Generation(generation.value() + 1);
  const uint32_t rank = plan.engine_rank;
  const bool on_device =
      std::any_of(plan.regions.begin(), plan.regions.end(),
                  [](const RegionHandle& region) { return region.cuda.has_value(); });
  EngineLease::Needs needs{.post_commit = plan.has_hook,
                           .drained_devices = on_device,
                           .request = plan.commits_on_request,
                           .tensors = {}};
  if (plan.has_hook) {
    for (const EngineView& view : plan.views) needs.tensors.push_back(view.tensor);
  }
  auto lease = std::make_shared<EngineLease>(rank, generation, std::move(needs));
  unfinished_.emplace(generation, Registration{.plan = std::move(plan),
                                               .memory = nullptr,
                                               .lease = std::move(lease),
                                               .disconnect = nullptr});
  return generation;
}

EngineRegistry::Registration* EngineRegistry::Find(Generation generation) {
  if (const auto found = unfinished_.find(generation); found != unfinished_.end()) {
    return &found->second;
  }
  for (auto& [rank, registration] : ranks_) {
    if (registration.lease->generation() == generation) return &registration;
  }
  return nullptr;
}

void EngineRegistry::SetDisconnect(Generation generation, std::function<void()> disconnect) {
  MutexLock lock(mutex_);
  if (Registration* const found = Find(generation)) found->disconnect = std::move(disconnect);
}

Status EngineRegistry::OnDescriptors(Generation generation, std::vector<UniqueFd> descriptors,
                                     UniqueFd connection) {
  auto memory = std::make_shared<AttachedMemory>();
  memory->handed->connection = std::move(connection);
  std::vector<RegionHandle> regions;
  {
    MutexLock lock(mutex_);
    const auto found = unfinished_.find(generation);
    if (found == unfinished_.end()) {
      return NotFoundError("this registration has ended; attach again");
    }
    const AttachPlan& plan = found->second.plan;
    memory->engine_rank = plan.engine_rank;
    memory->generation = generation;
    regions = plan.regions;
  }
  DWS_ASSIGN_OR_RETURN(memory->handed->regions, ImportRegions(regions, std::move(descriptors),
                                                              Access::kReadWrite, devices_));
  DWS_CHECK(memory->regions().size() == regions.size());
  {
    MutexLock lock(mutex_);
    const auto found = unfinished_.find(generation);
    if (found == unfinished_.end()) {
      return NotFoundError("this registration has ended; attach again");
    }
    DWS_RETURN_IF_ERROR(CheckOthers(found->second.plan));
    DWS_CHECK(found->second.memory == nullptr && !ranks_.contains(memory->engine_rank));
    memory->mapping = found->second.plan.mapping;  // Follow may have changed it meanwhile
    Registration& registration =
        ranks_.emplace(memory->engine_rank, std::move(found->second)).first->second;
    unfinished_.erase(found);
    stopped_.erase(memory->engine_rank);
    registration.memory = memory;
    LogInfo("engine_attached",
            {{"rank", memory->engine_rank},
             {"of", registration.plan.engine_world_size},
             {"generation", generation.value()},
             {"client", registration.plan.client},
             {"memory", fmt::format("{}", fmt::join(MemoryOf(registration.plan), " "))},
             {"slices", memory->mapping.slices.size()}});
  }
  changed_.Notify();
  return OkStatus();
}

Result<std::shared_ptr<EngineLease>> EngineRegistry::FindLease(uint32_t engine_rank,
                                                               Generation generation) const {
  MutexLock lock(mutex_);
  if (const auto early = unfinished_.find(generation);
      early != unfinished_.end() && early->second.plan.engine_rank == engine_rank) {
    return FailedPreconditionError("engine rank {} has not handed its memory over yet",
                                   engine_rank);
  }
  const auto found = ranks_.find(engine_rank);
  if (found == ranks_.end() || found->second.lease->generation() != generation) {
    return FailedPreconditionError(
        "engine rank {} has no registration of generation {}; attach again", engine_rank,
        generation.value());
  }
  return found->second.lease;
}

void EngineRegistry::OnStopped(Generation generation, std::string reason) {
  MutexLock lock(mutex_);
  if (const Registration* const found = Find(generation)) {
    stopped_[found->plan.engine_rank] = std::move(reason);
  }
}

void EngineRegistry::End(Generation generation, const Status& reason) {
  Registration ended;
  {
    MutexLock lock(mutex_);
    Registration* const found = Find(generation);
    if (found == nullptr) return;
    ended = std::move(*found);
    if (unfinished_.erase(generation) == 0) ranks_.erase(ended.plan.engine_rank);
    DWS_CHECK(Find(generation) == nullptr);
  }
  LogInfo("engine_detached", {{"rank", ended.plan.engine_rank},
                              {"generation", generation.value()},
                              {"reason", Message(reason)}});
  ended.lease->End(reason);
  if (ended.disconnect) ended.disconnect();
  changed_.Notify();
}

std::vector<Generation> EngineRegistry::Generations(
    const std::function<bool(const Registration&)>& wanted) const {
  std::vector<Generation> generations;
  for (const auto& [rank, registration] : ranks_) {
    if (wanted(registration)) generations.push_back(registration.lease->generation());
  }
  for (const auto& [generation, registration] : unfinished_) {
    if (wanted(registration)) generations.push_back(generation);
  }
  return generations;
}

void EngineRegistry::EndAll(const Status& reason) {
  std::vector<Generation> generations;
  {
    MutexLock lock(mutex_);
    generations = Generations([](const Registration&) { return true; });
  }
  for (const Generation generation : generations) End(generation, reason);
}

void EngineRegistry::EndForGood(const Status& reason) {
  DWS_CHECK(!reason.ok());  // OK would mean that the engine has not ended
  std::vector<std::shared_ptr<EngineLease>> leases;
  {
    MutexLock lock(mutex_);
    ended_ = reason;
    for (const auto& [rank, registration] : ranks_) leases.push_back(registration.lease);
  }
  for (const auto& lease : leases) lease->RequestPause();
  EndAll(reason);
}

Status EngineRegistry::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

Status EngineRegistry::MapAgain(const LayoutSetPtr& current, Registration& registration) {
  AttachPlan& plan = registration.plan;
  DWS_ASSIGN_OR_RETURN(
      plan.mapping, MapEngine(*current, plan.views, SizesOf(plan.regions), plan.mapping.excluded));
  plan.layouts = current;
  if (registration.memory == nullptr) return OkStatus();
  auto memory = std::make_shared<AttachedMemory>(*registration.memory);
  memory->mapping = plan.mapping;
  registration.memory = std::move(memory);
  return OkStatus();
}

CutWishes EngineRegistry::Follow(const LayoutSetPtr& current, bool senders_cut) {
  CutWishes missing;
  std::map<Generation, Status> unfit;
  {
    MutexLock lock(mutex_);
    const std::vector<Generation> others = Generations(
        [&current](const Registration& one) { return !one.plan.layouts->SameAs(*current); });
    for (const Generation generation : others) {
      Merge(missing, MissingCuts(*current, Find(generation)->plan.views));
    }
    // All ranks of an engine change over together.
    if (!missing.empty() && senders_cut) return missing;
    for (const Generation generation : others) {
      const Status mapped = MapAgain(current, *Find(generation));
      if (!mapped.ok()) unfit.emplace(generation, mapped);
    }
  }
  for (const auto& [generation, why] : unfit) {
    End(generation,
        AbortedError("the trainer's layout has changed: attach again: {}", Message(why)));
  }
  return {};
}

std::optional<AttachedEngine> EngineRegistry::Engine() const {
  MutexLock lock(mutex_);
  if (ranks_.empty() || ranks_.size() != ranks_.begin()->second.plan.engine_world_size)
    return std::nullopt;
  AttachedEngine engine{.layouts = ranks_.begin()->second.plan.layouts,
                        .generation = Generation(0),
                        .memory = {},
                        .leases = {}};
  for (const auto& [rank, registration] : ranks_) {
    const EngineLease::State state = registration.lease->state();
    if (state == EngineLease::State::kUnopened || state == EngineLease::State::kEnded ||
        !registration.plan.layouts->SameAs(*engine.layouts)) {
      return std::nullopt;
    }
    DWS_CHECK(registration.memory != nullptr &&
              registration.memory->generation == registration.lease->generation());
    engine.generation = std::max(engine.generation, registration.memory->generation);
    engine.memory.push_back(registration.memory);
    engine.leases.push_back(registration.lease);
  }
  return engine;
}

std::string EngineRegistry::Missing() const {
  MutexLock lock(mutex_);
  if (!ended_.ok()) return std::string(Message(ended_));
  const uint32_t world_size = ranks_.empty() ? 1 : ranks_.begin()->second.plan.engine_world_size;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    const auto found = ranks_.find(rank);
    if (found == ranks_.end()) {
      const bool comes =
          std::any_of(unfinished_.begin(), unfinished_.end(),
                      [rank](const auto& entry) { return entry.second.plan.engine_rank == rank; });
      if (comes) return fmt::format("engine rank {} has not handed its memory over", rank);
      const auto stopped = stopped_.find(rank);
      const std::string why =
          stopped == stopped_.end() ? "" : fmt::format(": it has stopped: {}", stopped->second);
      return ranks_.empty()
                 ? fmt::format("engine rank 0 is not attached{}", why)
                 : fmt::format("engine rank {} of {} is not attached{}", rank, world_size, why);
    }
    if (found->second.lease->state() == EngineLease::State::kUnopened) {
      return fmt::format("engine rank {} has not opened its lease", rank);
    }
  }
  return "";
}

uint32_t EngineRegistry::expected_ranks() const {
  MutexLock lock(mutex_);
  return ranks_.empty() ? 1 : ranks_.begin()->second.plan.engine_world_size;
}

EngineRegistry::RankState EngineRegistry::StateOf(const Registration& registration) {
  const EngineLease::State lease = registration.lease->state();
  return {.engine_rank = registration.plan.engine_rank,
          .attached = registration.memory != nullptr && lease != EngineLease::State::kUnopened,
          .lease = lease,
          .generation = registration.lease->generation(),
          .client = registration.plan.client,
          .memory = MemoryOf(registration.plan)};
}

std::vector<EngineRegistry::RankState> EngineRegistry::Ranks() const {
  MutexLock lock(mutex_);
  std::map<uint32_t, RankState> states;
  for (const auto& [rank, registration] : ranks_) states.emplace(rank, StateOf(registration));
  // Shows only the newest registration without memory of each rank, and only for unattached ranks.
  for (auto last = unfinished_.rbegin(); last != unfinished_.rend(); ++last) {
    states.try_emplace(last->second.plan.engine_rank, StateOf(last->second));
  }
  std::vector<RankState> all;
  for (auto& [rank, state] : states) all.push_back(std::move(state));
  return all;
}

}  // namespace dws
