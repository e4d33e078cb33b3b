#include "receiver_daemon/engine/engine_registry.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/memory/cuda/region_import.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Where the weights of an attach are, each once.
std::vector<std::string> MemoryOf(const AttachPlan& plan) {
  std::set<std::string> memory;
  for (const RegionHandle& region : plan.regions) {
    memory.insert(region.cuda.has_value() ? region.cuda->device_uuid : "host");
  }
  return {memory.begin(), memory.end()};
}

}  // namespace

Status EngineRegistry::CheckOthers(const AttachPlan& plan) const {
  std::vector<const EngineMapping*> mappings = {&plan.mapping};
  for (const auto& [rank, other] : ranks_) {
    if (other.plan.engine_world_size != plan.engine_world_size) {
      return InvalidArgumentError(
          "engine rank {} says the engine has {} ranks, rank {} ({}) says {}", plan.engine_rank,
          plan.engine_world_size, rank, other.plan.client, other.plan.engine_world_size);
    }
    if (!other.plan.layouts->SameAs(*plan.layouts)) continue;  // it is about to be ended
    mappings.push_back(&other.plan.mapping);
  }
  if (coverage_ == Coverage::kShare && plan.layouts->slice_count() > limits::kGroupSlicesMax) {
    return InvalidArgumentError("the trainer's layout has {} slices, a commit group supports {}",
                                plan.layouts->slice_count(), limits::kGroupSlicesMax);
  }
  if (mappings.size() < plan.engine_world_size)
    return OkStatus();  // the last rank is told what is missing
  return CheckCoverage(*plan.layouts, mappings, coverage_);
}

void EngineRegistry::EndUnfinished(uint32_t engine_rank) {
  Generation unfinished;
  {
    MutexLock lock(mutex_);
    const auto found = ranks_.find(engine_rank);
    if (found == ranks_.end() || found->second.memory != nullptr) return;
    unfinished = found->second.lease->generation();
  }
  End(unfinished, AbortedError("engine rank {} began to attach anew", engine_rank));
}

Result<Generation> EngineRegistry::Reserve(AttachPlan plan) {
  EndUnfinished(plan.engine_rank);
  MutexLock lock(mutex_);
  DWS_RETURN_IF_ERROR(ended_);
  if (const auto found = ranks_.find(plan.engine_rank); found != ranks_.end()) {
    return AlreadyExistsError(
        "engine rank {} is attached by {}: end that engine first, or give this one another rank",
        plan.engine_rank, found->second.plan.client);
  }
  DWS_RETURN_IF_ERROR(CheckOthers(plan));
  const Generation generation = next_generation_;
  next_generation_ = Generation(generation.value() + 1);
  const uint32_t rank = plan.engine_rank;
  const bool on_device =
      std::any_of(plan.regions.begin(), plan.regions.end(),
                  [](const RegionHandle& region) { return region.cuda.has_value(); });
  auto lease = std::make_shared<EngineLease>(
      rank, generation,
      EngineLease::Needs{.post_commit = plan.has_hook, .drained_devices = on_device});
  ranks_.emplace(rank, Registration{.plan = std::move(plan),
                                    .memory = nullptr,
                                    .lease = std::move(lease),
                                    .disconnect = nullptr});
  return generation;
}

const EngineRegistry::Registration* EngineRegistry::Find(Generation generation) const {
  for (const auto& [rank, registration] : ranks_) {
    if (registration.lease->generation() == generation) return &registration;
  }
  return nullptr;
}

void EngineRegistry::SetDisconnect(Generation generation, std::function<void()> disconnect) {
  MutexLock lock(mutex_);
  if (const Registration* found = Find(generation)) {
    ranks_.at(found->plan.engine_rank).disconnect = std::move(disconnect);
  }
}

Status EngineRegistry::OnDescriptors(Generation generation, std::vector<UniqueFd> descriptors,
                                     UniqueFd connection) {
  auto memory = std::make_shared<AttachedMemory>();
  memory->connection = std::move(connection);
  std::vector<RegionHandle> regions;
  {
    MutexLock lock(mutex_);
    const Registration* found = Find(generation);
    if (found == nullptr) return NotFoundError("this registration has ended; attach again");
    memory->engine_rank = found->plan.engine_rank;
    memory->generation = generation;
    memory->mapping = found->plan.mapping;
    regions = found->plan.regions;
  }
  DWS_ASSIGN_OR_RETURN(memory->regions, ImportRegions(regions, std::move(descriptors),
                                                      Access::kReadWrite, devices_));
  {
    MutexLock lock(mutex_);
    const Registration* found = Find(generation);
    if (found == nullptr) return NotFoundError("this registration has ended; attach again");
    Registration& registration = ranks_.at(found->plan.engine_rank);
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
  const auto found = ranks_.find(engine_rank);
  if (found == ranks_.end() || found->second.lease->generation() != generation) {
    return FailedPreconditionError(
        "engine rank {} has no registration of generation {}; attach again", engine_rank,
        generation.value());
  }
  if (found->second.memory == nullptr) {
    return FailedPreconditionError("engine rank {} has not handed its memory over yet",
                                   engine_rank);
  }
  return found->second.lease;
}

void EngineRegistry::End(Generation generation, const Status& reason) {
  Registration ended;
  {
    MutexLock lock(mutex_);
    const Registration* found = Find(generation);
    if (found == nullptr) return;
    const uint32_t rank = found->plan.engine_rank;
    ended = std::move(ranks_.at(rank));
    ranks_.erase(rank);
  }
  LogInfo("engine_detached", {{"rank", ended.plan.engine_rank},
                              {"generation", generation.value()},
                              {"reason", Message(reason)}});
  ended.lease->End(reason);
  if (ended.disconnect) ended.disconnect();
  changed_.Notify();
}

void EngineRegistry::EndAll(const Status& reason) {
  std::vector<Generation> generations;
  {
    MutexLock lock(mutex_);
    for (const auto& [rank, registration] : ranks_)
      generations.push_back(registration.lease->generation());
  }
  for (const Generation generation : generations) End(generation, reason);
}

void EngineRegistry::EndForGood(const Status& reason) {
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

void EngineRegistry::EndOthersThan(const LayoutSet& current) {
  std::vector<Generation> generations;
  {
    MutexLock lock(mutex_);
    for (const auto& [rank, registration] : ranks_) {
      if (registration.plan.layouts->SameAs(current)) continue;
      generations.push_back(registration.lease->generation());
    }
  }
  const Status reason = AbortedError("the trainer's layout has changed: attach again");
  for (const Generation generation : generations) End(generation, reason);
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
    if (registration.memory == nullptr || state == EngineLease::State::kUnopened ||
        state == EngineLease::State::kEnded ||
        !registration.plan.layouts->SameAs(*engine.layouts)) {
      return std::nullopt;
    }
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
      return ranks_.empty() ? "engine rank 0 is not attached"
                            : fmt::format("engine rank {} of {} is not attached", rank, world_size);
    }
    if (found->second.memory == nullptr) {
      return fmt::format("engine rank {} has not handed its memory over", rank);
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

std::vector<EngineRegistry::RankState> EngineRegistry::Ranks() const {
  MutexLock lock(mutex_);
  std::vector<RankState> states;
  for (const auto& [rank, registration] : ranks_) {
    const EngineLease::State lease = registration.lease->state();
    states.push_back(
        {.engine_rank = rank,
         .attached = registration.memory != nullptr && lease != EngineLease::State::kUnopened,
         .lease = lease,
         .generation = registration.lease->generation(),
         .client = registration.plan.client,
         .memory = MemoryOf(registration.plan)});
  }
  return states;
}

}  // namespace dws
