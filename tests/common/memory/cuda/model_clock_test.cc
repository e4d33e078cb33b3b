// The clock of the fake driver: when a GPU would have done what is called. The host's time does not
// count here, so that each time follows from the calls alone.
#include "tests/fakes/cuda/model/model_clock.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "tests/common/memory/cuda/device_fixture.h"
#include "tests/fakes/cuda/model/fake_clock.h"

namespace dws::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
using Kind = ModelledOp::Kind;

// One MiB takes a millisecond in any engine; nothing else takes time.
GpuModel RoundModel() {
  GpuModel model;
  model.read_bandwidth = 1e3 * kMiB;
  model.copy_bandwidth = 1e3 * kMiB;
  model.to_device_bandwidth = 1e3 * kMiB;
  model.to_host_bandwidth = 1e3 * kMiB;
  model.pageable_bandwidth = 0.5e3 * kMiB;
  model.kernel_latency = 0;
  model.copy_latency = 0;
  model.call_seconds = 0;
  model.wake_seconds = 0;
  return model;
}

struct Modelled {
  CudaDevicePtr device = OpenDevice();
  CudaBuffer buffer = *device->Allocate(8 * kMiB);
  CudaBuffer host = *device->AllocatePinned(8 * kMiB);
  CudaStream one = *device->CreateStream();
  CudaStream two = *device->CreateStream();

  Status Up(const CudaStream& stream, uint64_t mib = 1) const {
    return stream.CopyToDevice(buffer.address(), host.host_bytes().first(mib * kMiB));
  }
  Status Down(const CudaStream& stream, uint64_t mib = 1) const {
    return stream.CopyToHost(host.host_bytes().subspan(4 * kMiB, mib * kMiB),
                             buffer.address() + 4 * kMiB);
  }
};

std::vector<ModelledOp> WorkIn(const FakeClock& clock) {
  std::vector<ModelledOp> log = clock.TakeLog();
  std::erase_if(log, [](const ModelledOp& op) { return op.kind == Kind::kWait; });
  return log;
}

TEST_CASE("work of one stream is in order, and a wait moves the clock to its end", "[cuda]") {
  const Modelled fake;
  const FakeClock clock(RoundModel());
  REQUIRE(fake.Up(fake.one, 2).ok());
  REQUIRE(fake.Down(fake.one).ok());
  REQUIRE(fake.one.Zero(fake.buffer.address(), kMiB).ok());
  CHECK(clock.Now() == 0);  // nothing waited
  REQUIRE(fake.one.Synchronize().ok());
  CHECK(clock.Now() == Approx(4e-3));
  const std::vector<ModelledOp> log = WorkIn(clock);
  REQUIRE(log.size() == 3);
  CHECK(log[0].kind == Kind::kToDevice);
  CHECK(log[1].kind == Kind::kToHost);
  CHECK(log[2].kind == Kind::kOnDevice);
  CHECK(log[1].begin == Approx(log[0].end));
  CHECK(log[2].begin == Approx(log[1].end));
  CHECK(clock.TakeLog().empty());
}

TEST_CASE("two streams overlap on two engines, and not on one", "[cuda]") {
  const Modelled fake;
  const FakeClock clock(RoundModel());
  REQUIRE(fake.Up(fake.one, 2).ok());
  REQUIRE(fake.Down(fake.two, 2).ok());  // the other direction
  REQUIRE((fake.one.Synchronize().ok() && fake.two.Synchronize().ok()));
  CHECK(clock.Now() == Approx(2e-3));
  REQUIRE(fake.Up(fake.one, 2).ok());
  REQUIRE(fake.Up(fake.two, 2).ok());
  REQUIRE((fake.one.Synchronize().ok() && fake.two.Synchronize().ok()));
  CHECK(clock.Now() == Approx(6e-3));
}

TEST_CASE("an engine takes first what is ready first, not what was called first", "[cuda]") {
  const Modelled fake;
  const FakeClock clock(RoundModel());
  REQUIRE(fake.Up(fake.one, 3).ok());
  REQUIRE(fake.Down(fake.one, 1).ok());  // ready at 3 ms
  REQUIRE(fake.Down(fake.two, 4).ok());  // at once
  REQUIRE(fake.two.Synchronize().ok());
  CHECK(clock.Now() == Approx(4e-3));
  REQUIRE(fake.one.Synchronize().ok());
  CHECK(clock.Now() == Approx(5e-3));
}

TEST_CASE("pageable memory is slower and holds the host up, and so does taking memory", "[cuda]") {
  const Modelled fake;
  GpuModel model = RoundModel();
  model.pin_each = 1e-3 / kMiB;
  const FakeClock clock(model);
  const std::vector<std::byte> pageable(kMiB);
  REQUIRE(fake.one.CopyToDevice(fake.buffer.address(), pageable).ok());
  CHECK(clock.Now() == Approx(2e-3));
  REQUIRE(fake.device->AllocatePinned(3 * kMiB).ok());
  CHECK(clock.Now() == Approx(5e-3));
}

TEST_CASE("latencies count for each call, and bytes of a kernel by what it moves", "[cuda]") {
  const Modelled fake;
  GpuModel model = RoundModel();
  model.call_seconds = 1e-3;
  model.copy_latency = 10e-3;
  model.wake_seconds = 100e-3;
  model.kernels[static_cast<size_t>(Kernel::kDigest)].share = 0.5;
  const FakeClock clock(model);
  REQUIRE(fake.Up(fake.one, 1).ok());
  CHECK(clock.Now() == Approx(1e-3));
  REQUIRE(fake.one.Synchronize().ok());
  CHECK(clock.Now() == Approx(1e-3 + 10e-3 + 1e-3 + 100e-3));

  const Place place{.base = fake.buffer.address(), .run_elements = kMiB, .stride_elements = kMiB};
  const DigestBlock block{.elements = kMiB, .element_bytes = 1};
  const CudaBuffer input = *fake.device->Allocate(sizeof(block));
  const CudaBuffer places = *fake.device->Allocate(sizeof(place));
  const CudaBuffer digests = *fake.device->Allocate(sizeof(KernelDigest));
  WriteDevice(*fake.device, input.address(), std::as_bytes(std::span(&block, 1)));
  WriteDevice(*fake.device, places.address(), std::as_bytes(std::span(&place, 1)));
  clock.TakeLog();
  REQUIRE(fake.one
              .Launch(Kernel::kDigest,
                      DigestArgs{.blocks = input.address(),
                                 .places = places.address(),
                                 .digests = digests.address(),
                                 .block_count = 1},
                      1)
              .ok());
  const std::vector<ModelledOp> log = WorkIn(clock);
  REQUIRE(log.size() == 1);
  CHECK(log[0].bytes == kMiB);
  CHECK(log[0].end - log[0].begin == Approx(2e-3));
}

TEST_CASE("a host whose time counts sleeps until the clock is there", "[cuda]") {
  GpuModel model = RoundModel();
  model.host_counts = true;
  ModelClock clock(model);
  const RealClock real;
  const TimePoint began = real.Now();
  clock.Enter();
  std::this_thread::yield();
  clock.Run(0, 1, {.kind = Kind::kToDevice, .to_device = 20e-3});
  const double end = clock.WaitFor(1);
  clock.Leave();
  CHECK(end >= 20e-3);
  clock.Sleep(end);
  CHECK(clock.Now() >= end);
  CHECK(ToSeconds(real.Now() - began) >= 20e-3);
  // Inside the driver the host's time stands still, but for what other threads compute.
  clock.Enter();
  const double inside = clock.Now();
  for (const TimePoint from = real.Now(); ToSeconds(real.Now() - from) < 5e-3;) {
  }
  CHECK(clock.Now() == inside);
  clock.Leave();
}

}  // namespace
}  // namespace dws::cuda
