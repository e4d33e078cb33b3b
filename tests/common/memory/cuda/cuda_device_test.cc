// Devices, buffers and streams. Runs over the fake driver, and unchanged on a GPU.
#include "common/memory/cuda/cuda_device.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/common/memory/cuda/device_fixture.h"

namespace dws::cuda {
namespace {

std::string FirstUuid(const CudaDriverPtr& driver) {
  const Result<std::vector<std::string>> uuids = driver->DeviceUuids();
  REQUIRE((uuids.ok() && !uuids->empty()));
  return uuids->front();
}

Status OpenStatus(const CudaDriverPtr& driver, const std::string& uuid, ByteSpan image) {
  return CudaDevice::Open(driver, uuid, image).status();
}

CudaStream MakeStream(const CudaDevicePtr& device) {
  Result<CudaStream> stream = device->CreateStream();
  REQUIRE(stream.ok());
  return *std::move(stream);
}

CudaBuffer MakeBuffer(const CudaDevicePtr& device, uint64_t size) {
  Result<CudaBuffer> buffer = device->Allocate(size);
  REQUIRE(buffer.ok());
  return *std::move(buffer);
}

TEST_CASE("only errors after which CUDA is unusable in this process are remembered", "[cuda]") {
  for (const int error : {4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 805,
                          806, 810, 911, 999}) {
    CAPTURE(error);
    const CudaDriverPtr driver = LoadDriver();
    CHECK(!driver->Check(static_cast<DriverResult>(error), "a call").ok());
    CHECK_THAT(ToString(driver->lost()), Catch::StartsWith("INTERNAL: a call: "));
  }
  const CudaDriverPtr driver = LoadDriver();
  for (const int error : {1, 2, 201, 205, 208, 304, 400, 600, 712, 800, 801, 807, 808, 809, 811}) {
    CHECK(!driver->Check(static_cast<DriverResult>(error), "a call").ok());
  }
  CHECK(driver->lost().ok());
}

TEST_CASE("UUIDs are written in the form of nvidia-smi", "[cuda]") {
  const CudaDriverPtr driver = LoadDriver();
  CHECK(driver->version() >= 12000);
  const std::string uuid = FirstUuid(driver);
  REQUIRE(uuid.size() == 40);
  CHECK(uuid.starts_with("GPU-"));
  for (const size_t dash : {3, 12, 17, 22, 27}) CHECK(uuid[dash] == '-');

  CHECK(OpenDevice()->uuid() == uuid);
}

TEST_CASE("opening an unknown device is NOT_FOUND and names the devices that exist", "[cuda]") {
  const CudaDriverPtr driver = LoadDriver();
  const Status status =
      OpenStatus(driver, "GPU-00000000-0000-0000-0000-000000000000", KernelImage());
  CHECK(status.code() == absl::StatusCode::kNotFound);
  CHECK_THAT(ToString(status),
             Catch::Contains(FirstUuid(driver)) && Catch::Contains("CUDA_VISIBLE_DEVICES"));
}

TEST_CASE("a MIG instance is refused by name", "[cuda]") {
  const CudaDriverPtr driver = LoadDriver();
  const Status status =
      OpenStatus(driver, "MIG-5c4e0d4f-5b1f-5e0c-9b5b-0d3c8a4b8f6e", KernelImage());
  CHECK(status.code() == absl::StatusCode::kUnimplemented);
  CHECK_THAT(ToString(status), Catch::Contains("MIG instance"));

  if (!IsFake(*OpenDevice())) return;
  REQUIRE(::setenv("DWS_FAKE_CUDA_NAME", "Fake GPU MIG 1g.10gb", 1) == 0);
  const Status instance = OpenStatus(driver, FirstUuid(driver), KernelImage());
  REQUIRE(::unsetenv("DWS_FAKE_CUDA_NAME") == 0);
  CHECK(instance.code() == absl::StatusCode::kUnimplemented);
  CHECK_THAT(ToString(instance), Catch::Contains("1g.10gb"));
}

TEST_CASE("the error of a program without kernels says how to build one with them", "[cuda]") {
  const CudaDriverPtr driver = LoadDriver();
  const Status none = OpenStatus(driver, FirstUuid(driver), {});
  CHECK(none.code() == absl::StatusCode::kUnimplemented);
  CHECK_THAT(ToString(none), Catch::Contains("--config=cuda"));

  const std::string junk(4096, 'x');
  const Status damaged = OpenStatus(driver, FirstUuid(driver), AsBytes(junk));
  CHECK(damaged.code() == absl::StatusCode::kInternal);
  CHECK_THAT(ToString(damaged), Catch::Contains("cuModuleLoadData"));
}

TEST_CASE("a stream runs its work in order", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  const CudaStream stream = MakeStream(device);
  const CudaBuffer one = MakeBuffer(device, 10'000);
  const CudaBuffer two = MakeBuffer(device, 10'000);
  Result<CudaBuffer> in = device->AllocatePinned(10'000);
  Result<CudaBuffer> out = device->AllocatePinned(10'000);
  REQUIRE((in.ok() && out.ok()));
  const std::vector<std::byte> bytes = Pattern(3, 10'000);
  std::copy(bytes.begin(), bytes.end(), in->host_bytes().begin());

  REQUIRE(stream.CopyToDevice(one.address(), in->host_bytes()).ok());
  REQUIRE(stream.CopyOnDevice(two.address() + 1, one.address(), 5000).ok());
  REQUIRE(stream.Zero(two.address() + 100, 50).ok());
  REQUIRE(stream.CopyToHost(out->host_bytes(), two.address()).ok());
  REQUIRE(stream.Synchronize().ok());
  const MutableByteSpan got = out->host_bytes();
  CHECK(std::memcmp(got.data() + 1, bytes.data(), 99) == 0);
  CHECK(std::all_of(got.begin() + 100, got.begin() + 150,
                    [](std::byte byte) { return byte == std::byte{0}; }));
  CHECK(std::memcmp(got.data() + 150, bytes.data() + 149, 4800) == 0);
}

TEST_CASE("host memory is pinned in place and may be pinned several times", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  std::vector<std::byte> host = Pattern(1, 300'000);
  const CudaStream stream = MakeStream(device);
  const CudaBuffer buffer = MakeBuffer(device, host.size());
  {
    const Result<CudaBuffer> pinned = device->Pin(host);
    REQUIRE(pinned.ok());
    CHECK(pinned->host_bytes().data() == host.data());
    const Result<CudaBuffer> again = device->Pin(host);
    REQUIRE(again.ok());
    CHECK(again->address() == pinned->address());
    REQUIRE(stream.CopyOnDevice(buffer.address(), pinned->address(), host.size()).ok());
    REQUIRE(stream.Synchronize().ok());
  }
  CHECK(device->Pin(host).ok());
  CHECK(ReadDevice(*device, buffer.address(), host.size()) == host);
}

TEST_CASE("an allocation above the free memory is refused with both sizes", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  const Result<CudaBuffer> buffer = device->Allocate(uint64_t{1} << 44);
  CHECK(buffer.status().code() == absl::StatusCode::kResourceExhausted);
  const Result<uint64_t> free = device->FreeBytes();
  REQUIRE(free.ok());
  CHECK_THAT(ToString(buffer.status()),
             Catch::Contains("17592186044416") && Catch::Contains("are free"));
  const Result<CudaBuffer> none = device->Allocate(0);
  REQUIRE(none.ok());
  CHECK(none->size_bytes() == 0);
}

TEST_CASE("freed memory is available again", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  const Result<uint64_t> before = device->FreeBytes();
  REQUIRE(before.ok());
  {
    CudaBuffer buffer = MakeBuffer(device, uint64_t{64} << 20);
    CHECK(*device->FreeBytes() + (uint64_t{64} << 20) <= *before);
    CudaBuffer moved = std::move(buffer);
    CHECK(buffer.address() == 0);
    moved = CudaBuffer();
    CHECK(*device->FreeBytes() + (uint64_t{32} << 20) > *before);
  }
  CHECK(*device->FreeBytes() + (uint64_t{32} << 20) > *before);
}

TEST_CASE("a kernel is launched with its argument struct", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  constexpr uint32_t kBlocks = 300;  // more than one for each warp
  constexpr uint32_t kElements = 64;
  const CudaBuffer live = MakeBuffer(device, kBlocks * kElements * 2);
  const CudaBuffer arena = MakeBuffer(device, kBlocks * kElements * 2);
  const CudaBuffer tables = MakeBuffer(device, sizeof(Place) + kBlocks * sizeof(CommitBlock));
  const CudaStream stream = MakeStream(device);
  const std::vector<std::byte> values = Pattern(5, kBlocks * kElements * 2);
  const Place place{.base = live.address(), .run_elements = kBlocks * kElements};
  std::vector<CommitBlock> blocks(kBlocks);
  for (uint32_t b = 0; b < kBlocks; ++b) {
    blocks[b] = {.staged = uint64_t{b} * kElements * 2,
                 .first_element = uint64_t{b} * kElements,
                 .entries = kElements,
                 .place = 0,
                 .element_bytes = 2,
                 .dense = 1};
  }
  const uint64_t block_table = tables.address() + sizeof(Place);
  REQUIRE(stream.CopyToDevice(arena.address(), values).ok());
  REQUIRE(stream.CopyToDevice(tables.address(), std::as_bytes(std::span(&place, 1))).ok());
  REQUIRE(stream.CopyToDevice(block_table, std::as_bytes(std::span(blocks))).ok());
  const CommitArgs args{.blocks = block_table,
                        .places = tables.address(),
                        .arena = arena.address(),
                        .block_count = kBlocks};
  REQUIRE(stream.Launch(Kernel::kCommit, args, kBlocks).ok());
  REQUIRE(stream.Launch(Kernel::kCommit, args, 0).ok());  // nothing to do
  REQUIRE(stream.Synchronize().ok());
  CHECK(ReadDevice(*device, live.address(), values.size()) == values);
}

}  // namespace
}  // namespace dws::cuda
