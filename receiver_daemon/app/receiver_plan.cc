// Slices are counted by what they have in the memory of a rank: replicas of a slice on one rank
// once.
#include "receiver_daemon/app/receiver_plan.h"

#include <set>

#include "common/spool/spool.h"
#include "proto/admin.pb.h"
#include "receiver_daemon/commit/prepare.h"

namespace dws {
namespace {

void FillBytes(const LayoutSet& layouts, const std::set<OwnedSlice>& slices,
               google::protobuf::RepeatedPtrField<v1::PlanBytes>& bytes) {
  for (const OwnedSlice& slice : slices) {  // ascending by rank
    const bool is_new = bytes.empty() || bytes.rbegin()->trainer_rank() != slice.rank.value();
    v1::PlanBytes& row = is_new ? *bytes.Add() : *bytes.rbegin();
    row.set_trainer_rank(slice.rank.value());
    row.set_slices(row.slices() + 1);
    row.set_size_bytes(row.size_bytes() + layouts.rank(slice.rank).slice(slice.slice).size_bytes());
  }
}

// What a trainer rank sends waits in memory, or all of it in a file.
void FillStaging(uint64_t staging_bytes_max, v1::PlanReply& reply) {
  const uint64_t rank_max = RankStagingMax(staging_bytes_max, reply.trainer_ranks());
  for (const v1::PlanBytes& taken : reply.taken()) {
    const uint64_t memory = Spool::MemoryOf(taken.size_bytes(), rank_max);
    reply.set_staging_bytes(reply.staging_bytes() + memory);
    if (memory == 0) {
      reply.set_staging_file_bytes(reply.staging_file_bytes() + taken.size_bytes());
    }
  }
  reply.set_staging_bytes_max(staging_bytes_max);
}

}  // namespace

void FillPlan(const AttachedEngine& engine, const WorkerStatus& worker, v1::PlanReply& reply) {
  const LayoutSet& layouts = *engine.layouts;
  reply.set_trainer_ranks(layouts.world_size());
  for (uint32_t r = 0; r < layouts.world_size(); ++r) {
    reply.set_elements(reply.elements() + layouts.rank(TrainerRank(r)).element_count());
    reply.set_size_bytes(reply.size_bytes() + layouts.rank(TrainerRank(r)).size_bytes());
  }
  std::set<OwnedSlice> all;
  for (const AttachedMemoryPtr& memory : engine.memory) {
    std::set<OwnedSlice> held;
    for (const MappedSlice& slice : memory->mapping.slices) held.insert(slice.slice);
    v1::PlanEngineRank& rank = *reply.add_engine_ranks();
    rank.set_engine_rank(memory->engine_rank);
    FillBytes(layouts, held, *rank.mutable_held());
    all.merge(held);
  }
  FillBytes(layouts, all, *reply.mutable_taken());
  FillStaging(worker.staging_bytes_max, reply);
  const auto& delta = worker.last_delta;
  if (!delta.has_value() || delta->rank_delta_bytes.size() != layouts.world_size()) return;
  reply.mutable_delta()->set_version(delta->version.value());
  for (const uint64_t bytes : delta->rank_delta_bytes) {
    reply.mutable_delta()->add_fetched_bytes(bytes);
  }
  reply.mutable_delta()->set_staging_bytes(delta->staging_bytes);
}

}  // namespace dws
