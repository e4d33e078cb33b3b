// The product's own staging and commit on memory of this process, without daemons around it.
#include "tools/bench/codec/receiver_side.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace dws::bench {
namespace {
constexpr uint64_t kPlentyBytes = uint64_t{1} << 42;
constexpr TrainerRank kRank(0);

Spool NewSpool() {
  return Spool(
      {.folder = "/tmp", .memory_bytes_max = kPlentyBytes, .size_bytes_max = kPlentyBytes});
}
}  // namespace

Result<std::unique_ptr<ReceiverSide>> ReceiverSide::Create(const Placement& placement) {
  DWS_ASSIGN_OR_RETURN(CreatedRegion created,
                       CreateHostRegion("bench-engine", placement.size_bytes));
  return CreateFor(placement, std::move(created.region));
}

Result<std::unique_ptr<ReceiverSide>> ReceiverSide::CreateFor(const Placement& placement,
                                                              MappedRegion region) {
  std::unique_ptr<ReceiverSide> side(new ReceiverSide);
  DWS_ASSIGN_OR_RETURN(LayoutSetPtr layouts,
                       LayoutSet::Create({std::make_shared<const RankLayout>(placement.layout)}));
  std::vector<EngineView> views;
  for (size_t i = 0; i < placement.places.size(); ++i) {
    const TensorSpec& spec = placement.layout.shards()[i].tensor;
    views.push_back({.engine_name = spec.name,
                     .tensor = spec.name,
                     .dtype = spec.dtype,
                     .shape = spec.shape,
                     .strides = RowMajorStrides(spec.shape),
                     .region = 0,
                     .offset_bytes = placement.places[i].offset_bytes});
  }
  auto memory = std::make_shared<AttachedMemory>();
  const std::vector<uint64_t> region_bytes = {placement.size_bytes};
  DWS_ASSIGN_OR_RETURN(memory->mapping, MapEngine(*layouts, views, region_bytes, {}));
  memory->handed->regions.push_back(std::move(region));
  memory->generation = Generation(1);
  side->memory_ = memory;
  DWS_ASSIGN_OR_RETURN(side->engine_, EngineWeights::Create(layouts, {memory}));
  return side;
}

Status ReceiverSide::Take(ByteSpan object) {
  spool_ = NewSpool();
  DWS_RETURN_IF_ERROR(spool_->Append(object));
  DWS_ASSIGN_OR_RETURN(object_, ParseObject(*spool_, engine_->layouts().rank(kRank)));
  return OkStatus();
}

Status ReceiverSide::ReadLive(ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(live_, engine_->ComputeStates(kRank, pool));
  return OkStatus();
}

Result<StagedDelta> ReceiverSide::Stage(ThreadPool& pool) const {
  DeltaStager stager(*engine_, kRank, kPlentyBytes, pool, spare_);
  DWS_RETURN_IF_ERROR(stager.Add(object_.frames, *spool_));
  DWS_ASSIGN_OR_RETURN(StagedDelta staged, stager.Finish(object_.manifest, live_));
  if (!staged.rejected.empty()) return staged.rejected.front().reason;
  return staged;
}

void ReceiverSide::Commit(const StagedDelta& staged, ThreadPool& pool) const {
  ScatterList list;
  AddToList(staged.groups, list);
  DWS_CHECK(Scatter(*engine_, list, pool).ok());  // host memory does not fail
}

void ReceiverSide::BeginFull() {
  spool_ = NewSpool();
  object_ = {};
}

Status ReceiverSide::ReceiveFull(const FullFrame& frame) {
  object_.frames.push_back(
      {.slice = frame.slice, .entry = frame.entry, .spool_offset = spool_->size_bytes()});
  return spool_->Append(frame.bytes);
}

void ReceiverSide::TakeFull(FetchedFull full) {
  spool_ = std::move(full.spool);
  object_ = {};
  object_.frames = std::move(full.frames);
}

Status ReceiverSide::WriteFull(ThreadPool& pool) const {
  return ApplyFramesInPlace(*engine_, kRank, object_.frames, *spool_, pool);
}

Status CheckObject(const Placement& placement, ByteSpan object, ByteSpan before, ByteSpan after,
                   ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(const auto receiver, ReceiverSide::Create(placement));
  std::memcpy(receiver->weights().data(), before.data(), before.size());
  DWS_RETURN_IF_ERROR(receiver->Receive(object, pool));
  DWS_ASSIGN_OR_RETURN(const StagedDelta staged, receiver->Stage(pool));
  receiver->Commit(staged, pool);
  if (std::memcmp(receiver->weights().data(), after.data(), after.size()) == 0) return OkStatus();
  return DataLossError("an object of {} bytes does not lead to the trainer's weights",
                       object.size());
}

}  // namespace dws::bench
