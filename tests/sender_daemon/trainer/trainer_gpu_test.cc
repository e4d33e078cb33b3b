// A trainer whose weights are on a GPU: what its publish waits for, and what is done after the
// answer.
#include <fcntl.h>
#include <sys/file.h>

#include "sender_daemon/capture/device_shards.h"
#include "tests/common/memory/cuda/device_fixture.h"
#include "tests/common/memory/cuda/export_scenarios.h"
#include "tests/fakes/cuda/model/fake_clock.h"
#include "tests/fakes/temp_folder.h"
#include "tests/sender_daemon/trainer/trainer_session_fixture.h"

namespace dws {
namespace {

// The range of a chunk begins at an odd address; the tensors of Layout() lie from the next multiple
// of 8 on, one after the other.
struct GpuTrainer {
  static constexpr uint64_t kAlignment = 8;

  GpuTrainer() {
    auto made = cuda::MakeScenario("chunk", device);
    REQUIRE(made.ok());
    memory = *std::move(made);
    address = CeilDiv(memory->ranges[0].address, kAlignment) * kAlignment;
  }

  // Registers with the sender and hands the chunk over.
  uint64_t Attach(Fixture& fixture) {
    auto exported = cuda::ExportMemory(*device, memory->ranges);
    REQUIRE((exported.ok() && exported->regions.size() == 1 && exported->descriptors.size() == 1));
    const RegionHandle& handle = exported->regions[0];
    v1::RegisterRequest request = Resident(1, layout);
    v1::Region& region = *request.mutable_resident()->mutable_regions(0);
    region.set_size_bytes(handle.size_bytes);
    region.mutable_cuda()->set_device_uuid(device->uuid());
    v1::CudaChunk& chunk = *region.mutable_cuda()->add_chunks();
    chunk.set_size_bytes(handle.size_bytes);
    chunk.set_posix_descriptor(true);
    for (v1::ResidentShard& shard : *request.mutable_resident()->mutable_shards()) {
      shard.set_offset_bytes(shard.offset_bytes() + exported->places[0].offset_bytes + address -
                             memory->ranges[0].address);
    }
    return fixture.Attach(request, exported->descriptors[0], client);
  }

  void Set(const Weights& weights) const {
    uint64_t at = address;
    for (const std::vector<std::byte>& slice : weights) {
      cuda::WriteDevice(*device, at, slice);
      at += slice.size();
    }
  }

  const RankLayout layout = Layout();
  const cuda::CudaDevicePtr device = cuda::OpenDevice();
  std::unique_ptr<cuda::OwnedMemory> memory;
  uint64_t address = 0;  // of the first tensor
  HandleClient client;
};

// The bytes in the snapshot, whose gate a capture holds.
Weights Stored(const RankState& state) {
  Weights stored;
  for (uint32_t s = 0; s < state.layout().slice_count(); ++s) {
    const ByteSpan bytes = state.snapshot->SliceBytes(RankSlice(s));
    stored.emplace_back(bytes.begin(), bytes.end());
  }
  return stored;
}

TEST_CASE("a delta of weights on a GPU is answered when they are read, before it is encoded",
          "[gpu]") {
  std::mt19937_64 random(Catch::rngSeed());
  cuda::CudaDevices devices{cuda::KernelImage()};
  GpuTrainer trainer;
  const cuda::FakeClock clock(cuda::GpuModel::H100());
  Fixture fixture(&devices);
  const uint64_t session = trainer.Attach(fixture);
  const Weights first = RandomWeights(trainer.layout, random);
  trainer.Set(first);
  REQUIRE(fixture.Publish(session, 1).ok());
  Weights second = first;
  Perturb(second, 0.01, random);
  trainer.Set(second);

  clock.TakeLog();
  v1::PublishRequest request;
  request.set_session(session);
  request.set_version(2);
  bool answered = false;
  const auto answer = [&](const v1::PublishReply& reply) {
    answered = true;
    CHECK(reply.changed_elements() > 0);
    // Encoding a block stores it into the snapshot.
    CHECK((Stored(*fixture.state_) == first));
    const auto log = clock.TakeLog();
    CHECK(std::ranges::any_of(log, [](const cuda::ModelledOp& op) {
      return op.kind == cuda::ModelledOp::Kind::kKernel && op.kernel == cuda::Kernel::kDiff;
    }));
    for (const cuda::ModelledOp& op : log) CHECK(op.end <= clock.Now());  // nothing still reads
    Weights third = second;
    Perturb(third, 0.5, random);
    trainer.Set(third);  // the trainer goes on
    clock.TakeLog();
  };
  const auto published = fixture.Run([&](TrainerSession& trainer_session) {
    return trainer_session.Publish(
        request, [] { return true; }, answer);
  });
  REQUIRE(published.ok());
  CHECK(answered);
  CHECK(clock.TakeLog().empty());  // what follows needs nothing of the GPU
  CHECK((fixture.Snapshot() == second));
}

TEST_CASE("while memory is page-locked for a trainer, others use the handle socket", "[gpu]") {
  std::mt19937_64 random(Catch::rngSeed());
  cuda::CudaDevices devices{cuda::KernelImage()};
  GpuTrainer trainer;
  if (!cuda::IsFake(*trainer.device)) return;  // a real GPU cannot be told to wait
  const TempFolder folder;
  const std::string held = folder.File("held");
  Fixture fixture(&devices);
  UniqueFd lock(::open(held.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  REQUIRE(::flock(lock.get(), LOCK_EX) == 0);
  uint64_t session = 0;
  {
    const cuda::Setting hold("DWS_FAKE_CUDA_HOLD", "cuMemHostAlloc:" + held);
    session = trainer.Attach(fixture);  // is answered
    std::promise<void> next;
    REQUIRE(fixture.executor_.Post([&next] { next.set_value(); }));
    std::future<void> done = next.get_future();
    CHECK(done.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout);
    const auto other = fixture.handles_->Expect(
        {.descriptor_count = 1,
         .on_descriptors = [](std::vector<UniqueFd>, UniqueFd) { return OkStatus(); },
         .on_hangup = nullptr});
    REQUIRE(other.ok());
    const std::string token(reinterpret_cast<const char*>(other->token.data()),
                            other->token.size());
    const UniqueFd any(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    HandleClient client;
    CHECK(client.Send(fixture.handles_->path(), token, any.get()) == "ok");
    CHECK(done.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
    lock.reset();
    done.wait();
  }
  const Weights weights = RandomWeights(trainer.layout, random);
  trainer.Set(weights);
  REQUIRE(fixture.Publish(session, 1).ok());
  CHECK((fixture.Snapshot() == weights));
}

}  // namespace
}  // namespace dws
