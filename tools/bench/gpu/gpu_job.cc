// The clock runs on between versions, but what the trainer's optimiser and the checks do then is
// in no timeline.
#include "tools/bench/gpu/gpu_job.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/sources/same_host/snapshot_reader.h"
#include "common/spool/full_assembly.h"
#include "receiver_daemon/weights/direct_write.h"
#include "tests/fakes/cuda/device_memory.h"

namespace dws::bench {
namespace {

constexpr TrainerRank kRank(0);
// The room for lists, as the Python client makes it: one part in so many of the weights.
constexpr uint64_t kListPart = 8;

}  // namespace

Result<std::unique_ptr<GpuJob>> GpuJob::Create(const Workload& workload, size_t threads,
                                               const cuda::GpuModel& model) {
  const cuda::CudaDevicePtr device = cuda::TestDevice();
  if (device == nullptr || !device->name().starts_with("Fake")) {
    return FailedPreconditionError(
        "the tests' fake CUDA driver is not loaded: start this by tools/bench.sh gpu");
  }
  const Placement& placement = workload.placement();
  std::unique_ptr<GpuJob> job(new GpuJob(workload, threads, model));
  job->device_ = device;
  cuda::CudaRegion trainer = cuda::MakeRegion(device, placement.size_bytes);
  cuda::CudaRegion engine = cuda::MakeRegion(device, placement.size_bytes);
  job->trainer_ = trainer.address();
  job->engine_ = engine.address();
  job->bytes_.resize(placement.size_bytes);
  workload.FillBefore(job->bytes_);
  DWS_RETURN_IF_ERROR(job->Upload());
  const uint64_t room = placement.size_bytes / kListPart;
  DWS_ASSIGN_OR_RETURN(CreatedRegion lists, CreateHostRegion("bench-lists", room));
  job->lists_ = std::move(lists.region);
  DWS_ASSIGN_OR_RETURN(UniqueFd read_only, ReopenReadOnly(lists.fd));
  DWS_ASSIGN_OR_RETURN(HostRegion region,
                       HostRegion::Map(std::move(read_only), room, Access::kReadOnly));
  DWS_ASSIGN_OR_RETURN(job->sender_,
                       SenderSide::CreateFor(placement, std::move(trainer), std::move(region)));
  job->sender_->TakeMemory(job->pool_);
  DWS_ASSIGN_OR_RETURN(job->receiver_, ReceiverSide::CreateFor(placement, std::move(engine)));
  return job;
}

Status GpuJob::Upload() const {
  DWS_ASSIGN_OR_RETURN(const cuda::CudaStream stream, device_->CreateStream());
  DWS_RETURN_IF_ERROR(stream.CopyToDevice(trainer_, bytes_));
  return stream.Synchronize();
}

void GpuJob::Begin() {
  timeline_ = {};
  clock_.TakeLog();
  stage_began_ = clock_.Now();
}

void GpuJob::Mark(const char* name) {
  const double now = clock_.Now();
  timeline_.stages.push_back({.name = name, .begin = stage_began_, .end = now});
  stage_began_ = now;
}

Timeline GpuJob::End() {
  timeline_.log = clock_.TakeLog();
  return std::exchange(timeline_, {});
}

Status GpuJob::Fetch(DirectTarget* direct) {
  const Snapshot& snapshot = sender_->snapshot();
  std::vector<RankSlice> slices;
  for (uint32_t s = 0; s < snapshot.layout().slice_count(); ++s) slices.push_back(RankSlice(s));
  const FullWant want{.layout = snapshot.layout(),
                      .slices = slices,
                      .expected = snapshot.digests(),
                      .direct = direct,
                      .rank = kRank};
  const uint64_t bytes = snapshot.layout().size_bytes();
  DWS_ASSIGN_OR_RETURN(const auto assembly,
                       FullAssembly::Create(want, {.folder = "/tmp",
                                                   .memory_bytes_max = 2 * bytes,
                                                   .size_bytes_max = 2 * bytes,
                                                   .spare = receiver_->spare()}));
  DWS_RETURN_IF_ERROR(ReadSnapshot(snapshot.memory(), *snapshot.version(), *assembly, pool_));
  FetchedFull full = assembly->Finish();
  DWS_RETURN_IF_ERROR(
      VerifyFull(snapshot.layout(), slices, full.frames, full.spool, snapshot.digests(), pool_));
  receiver_->TakeFull(std::move(full));
  return OkStatus();
}

Result<Timeline> GpuJob::First() {
  Begin();
  sender_->Capture(pool_);
  Mark(kCapture);
  DirectWrite direct(receiver_->engine());
  DWS_RETURN_IF_ERROR(Fetch(&direct));
  Mark(kDirect);
  DWS_RETURN_IF_ERROR(receiver_->ReadLive(pool_));
  Mark(kProve);
  sender_->Seal();  // nothing is sealed of a full version
  return End();
}

std::vector<ListedShard> GpuJob::ListChanges(ByteSpan before) {
  const Placement& placement = workload_.placement();
  std::vector<ListedShard> listed;
  uint64_t at = 0;
  for (uint32_t shard = 0; shard < placement.places.size(); ++shard) {
    const uint64_t begin = placement.places[shard].offset_bytes;
    const uint64_t size = placement.layout.shards()[shard].tensor.SizeBytes();
    std::vector<uint32_t> positions;
    std::vector<uint16_t> values[2];
    for (uint64_t i = 0; i < size; i += sizeof(uint16_t)) {
      const auto was = LoadLe<uint16_t>(before.data() + begin + i);
      const auto is = LoadLe<uint16_t>(bytes_.data() + begin + i);
      if (was == is) continue;
      positions.push_back(static_cast<uint32_t>(i / sizeof(uint16_t)));
      values[0].push_back(was);
      values[1].push_back(is);
    }
    listed.push_back({.shard = shard, .count = positions.size(), .offset_bytes = at});
    DWS_CHECK(at + ListBytes(positions.size(), sizeof(uint16_t)) <= lists_.bytes().size());
    const auto put = [&](ByteSpan bytes) {
      std::ranges::copy(bytes, lists_.mutable_bytes().begin() + static_cast<ptrdiff_t>(at));
      at += CeilDiv(bytes.size(), kListAlignment) * kListAlignment;
    };
    put(std::as_bytes(std::span(positions)));
    for (const auto& of : values) put(std::as_bytes(std::span(of)));
  }
  return listed;
}

Result<Timeline> GpuJob::Delta(bool listed) {
  is_after_ = !is_after_;
  const std::vector<std::byte> before = listed ? bytes_ : std::vector<std::byte>();
  const WordChanges& changes = workload_.changes();
  workload_.Write(bytes_, is_after_ ? changes.after : changes.before);
  DWS_RETURN_IF_ERROR(Upload());
  std::vector<ListedShard> lists;
  if (listed) lists = ListChanges(before);
  Begin();
  sender_->Capture(
      pool_, DeltaProfile::kFast, FullCause::kNone, [this](uint64_t) { Mark(kStall); },
      std::move(lists));
  Mark(kEncode);
  const RetainedVersionPtr sealed = sender_->Seal();
  Mark(kSeal);
  if (listed != (sealed->listed_blocks == sender_->snapshot().layout().block_count())) {
    return InternalError("{} blocks were taken from lists", sealed->listed_blocks);
  }
  if (sealed->nnz != workload_.changed_elements()) {
    return InternalError("{} elements changed, expected {}", sealed->nnz,
                         workload_.changed_elements());
  }
  DWS_RETURN_IF_ERROR(receiver_->Take(sealed->object));
  Mark(kTake);
  DWS_ASSIGN_OR_RETURN(const StagedDelta staged, receiver_->Stage(pool_));
  if (staged.in_place) return ResourceExhaustedError("the delta was not staged");
  Mark(kStage);
  receiver_->Commit(staged, pool_);
  Mark(kCommit);
  Timeline timeline = End();
  DWS_RETURN_IF_ERROR(receiver_->ReadLive(pool_));
  return timeline;
}

Result<Timeline> GpuJob::Full() {
  for (size_t i = 0; i < bytes_.size(); i += 2) bytes_[i] ^= std::byte{1};
  DWS_RETURN_IF_ERROR(Upload());
  Begin();
  sender_->Capture(pool_, DeltaProfile::kFast, FullCause::kAsked);
  Mark(kCapture);
  sender_->Seal();
  DWS_RETURN_IF_ERROR(Fetch(nullptr));
  Mark(kFetch);
  DWS_RETURN_IF_ERROR(receiver_->WriteFull(pool_));
  Mark(kApply);
  DWS_RETURN_IF_ERROR(receiver_->ReadLive(pool_));
  Mark(kProve);
  receiver_->BeginFull();  // gives the staging memory back
  return End();
}

Status GpuJob::CheckEngine() const {
  std::vector<std::byte> engine(bytes_.size());
  DWS_ASSIGN_OR_RETURN(const cuda::CudaStream stream, device_->CreateStream());
  DWS_RETURN_IF_ERROR(stream.CopyToHost(engine, engine_));
  DWS_RETURN_IF_ERROR(stream.Synchronize());
  if (engine == bytes_) return OkStatus();
  return DataLossError("the engine's {} bytes are not the trainer's", bytes_.size());
}

}  // namespace dws::bench
