// Device memory handed from one process to another. Runs over the fake driver, and unchanged on a
// GPU.
#include "common/memory/cuda/ipc/cuda_region.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/common/memory/cuda/device_fixture.h"
#include "tests/common/memory/cuda/export_scenarios.h"
#include "tests/common/memory/cuda/exporter_process.h"

namespace dws::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint8_t kTurn = 0xa5;

// Imports all regions of a registration, in order.
std::vector<CudaRegion> ImportAll(const CudaDevicePtr& device, Exported& exported) {
  INFO(exported.error);
  REQUIRE(exported.error.empty());
  std::vector<CudaRegion> regions;
  CudaPoolPtr pool;
  for (const RegionHandle& handle : exported.regions) {
    Result<CudaRegion> region =
        CudaRegion::Import(device, handle, exported.TakeDescriptors(handle), &pool);
    INFO(ToString(region.status()));
    REQUIRE(region.ok());
    REQUIRE(region->size_bytes() == handle.size_bytes);
    regions.push_back(*std::move(region));
  }
  REQUIRE(exported.descriptors.empty());
  return regions;
}

// Checks that each side sees the bytes that the other side wrote.
void CheckShared(const CudaDevice& device, const ExporterProcess& exporter,
                 const Exported& exported, const std::vector<CudaRegion>& regions) {
  bool same = true;
  for (size_t r = 0; r < exported.places.size(); ++r) {
    const uint64_t address =
        regions[exported.places[r].region].address() + exported.places[r].offset_bytes;
    same = same && ReadDevice(device, address, exported.sizes[r]) == Pattern(r, exported.sizes[r]);
    WriteDevice(device, address, Pattern(r, exported.sizes[r], kTurn));
  }
  CHECK(same);
  CHECK(exporter.Verify(kTurn) == "right");
}

// Exports, imports and checks; returns the handles that were passed.
std::vector<RegionHandle> CheckScenario(const std::string& scenario) {
  const CudaDevicePtr device = OpenDevice();
  const ExporterProcess exporter(scenario, device->uuid());
  Exported exported = exporter.Receive();
  const std::vector<CudaRegion> regions = ImportAll(device, exported);
  CheckShared(*device, exporter, exported, regions);
  return exported.regions;
}

// The status of importing `handle` with the descriptors of `exported`.
Status ImportChanged(const CudaDevicePtr& device, Exported& exported, const RegionHandle& handle) {
  return CudaRegion::Import(device, handle, std::move(exported.descriptors)).status();
}

TEST_CASE(
    "allocations with ranges at odd offsets are shared by legacy handles with one import each",
    "[cuda]") {
  const std::vector<RegionHandle> regions = CheckScenario("legacy");
  REQUIRE(regions.size() == 3);
  for (const RegionHandle& region : regions) {
    CHECK(region.cuda->chunks.size() == 1);
    CHECK(region.cuda->chunks[0].kind == CudaChunkHandle::Kind::kLegacyIpc);
  }
}

TEST_CASE("5000 tensors in three allocations need three imports", "[cuda]") {
  CHECK(CheckScenario("tensors").size() == 3);
}

TEST_CASE("a chunk of virtual memory is shared by its descriptor", "[cuda]") {
  const std::vector<RegionHandle> regions = CheckScenario("chunk");
  REQUIRE(regions.size() == 1);
  CHECK(regions[0].size_bytes == 4 * kMiB);
  CHECK(regions[0].cuda->chunks[0].kind == CudaChunkHandle::Kind::kDescriptor);
}

TEST_CASE("a tensor over several chunks shares each of its chunks once", "[cuda]") {
  const std::vector<RegionHandle> regions = CheckScenario("chunks");
  REQUIRE(regions.size() == 2);
  CHECK(regions[0].cuda->chunks.size() == 3);
  CHECK(regions[0].size_bytes == 8 * kMiB);
  CHECK(regions[1].cuda->chunks.size() == 1);  // the chunk between them holds no range
  CHECK(regions[1].size_bytes == 6 * kMiB);
}

TEST_CASE("memory of an explicit pool is shared and its descriptor is passed once", "[cuda]") {
  const std::vector<RegionHandle> regions = CheckScenario("pool");
  REQUIRE(regions.size() == 3);
  size_t opened = 0;
  for (const RegionHandle& region : regions) opened += region.cuda->chunks[0].opens_pool ? 1 : 0;
  CHECK(opened == 1);
}

TEST_CASE("memory that cannot be shared is refused and the error says what to do", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  SECTION("the default pool") {
    const ExporterProcess exporter("default pool", device->uuid());
    CHECK_THAT(exporter.Receive().error,
               Catch::Contains("UNIMPLEMENTED") && Catch::Contains("backend:native"));
  }
  SECTION("chunks without a handle type") {
    const ExporterProcess exporter("unshared", device->uuid());
    CHECK_THAT(exporter.Receive().error,
               Catch::Contains("UNIMPLEMENTED") && Catch::Contains("expandable_segments:False"));
  }
  SECTION("memory of the host") {
    const Result<CudaBuffer> pinned = device->AllocatePinned(4096);
    REQUIRE(pinned.ok());
    int on_stack = 0;
    const DeviceRange range{reinterpret_cast<uint64_t>(&on_stack), sizeof(on_stack)};
    CHECK(ExportMemory(*device, std::span(&range, 1)).status().code() ==
          absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("fabric handles are used when a chunk has no other", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  if (!IsFake(*device)) {
    WARN("skipped: fabric handles need a machine that has a fabric");
    return;
  }
  REQUIRE(::setenv("DWS_FAKE_CUDA_FABRIC", "1", 1) == 0);
  {
    const ExporterProcess exporter("fabric", device->uuid());
    Exported exported = exporter.Receive();
    CHECK(exported.descriptors.empty());
    const std::vector<CudaRegion> regions = ImportAll(device, exported);
    CheckShared(*device, exporter, exported, regions);

    REQUIRE(::setenv("DWS_FAKE_CUDA_FABRIC", "0", 1) == 0);
    const Status refused = CudaRegion::Import(device, exported.regions[0], {}).status();
    CHECK(refused.code() == absl::StatusCode::kUnimplemented);
    CHECK_THAT(ToString(refused),
               Catch::Contains("CUDA_ERROR_NOT_PERMITTED") && Catch::Contains("IMEX"));
  }
  REQUIRE(::unsetenv("DWS_FAKE_CUDA_FABRIC") == 0);
}

TEST_CASE("devices are identified by UUID and not by ordinal", "[cuda]") {
  const Result<std::vector<std::string>> uuids = LoadDriver()->DeviceUuids();
  REQUIRE(uuids.ok());
  if (uuids->size() < 2) {
    WARN("skipped: needs two devices");
    return;
  }
  const CudaDevicePtr device = OpenDevice(0);
  const ExporterProcess exporter("legacy", device->uuid(), "1,0");
  Exported exported = exporter.Receive();
  const std::vector<CudaRegion> regions = ImportAll(device, exported);
  CheckShared(*device, exporter, exported, regions);

  // The memory is on the first device, so the second refuses it.
  const CudaDevicePtr other = OpenDevice(1);
  const Status refused = CudaRegion::Import(other, exported.regions[0], {}).status();
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(ToString(refused), Catch::Contains(other->uuid()) && Catch::Contains(device->uuid()));
  // A handle with a false UUID is refused where the driver can tell; the fake driver can.
  RegionHandle lying = exported.regions[0];
  lying.cuda->device_uuid = other->uuid();
  const Status found_out = CudaRegion::Import(other, lying, {}).status();
  if (IsFake(*device)) CHECK(found_out.code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a chunk of another device is not mapped", "[cuda]") {
  const Result<std::vector<std::string>> uuids = LoadDriver()->DeviceUuids();
  REQUIRE(uuids.ok());
  if (uuids->size() < 2) {
    WARN("skipped: needs two devices");
    return;
  }
  const ExporterProcess exporter("chunk", (*uuids)[1]);
  Exported exported = exporter.Receive();
  REQUIRE(exported.error.empty());
  const CudaDevicePtr device = OpenDevice(0);
  RegionHandle lying = exported.regions[0];
  lying.cuda->device_uuid = device->uuid();
  const Status refused = ImportChanged(device, exported, lying);
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(ToString(refused), Catch::Contains("chunk 0"));
}

TEST_CASE("a declared size that differs from the driver's is refused", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  const std::string scenario = GENERATE("legacy", "chunk", "pool");
  const bool more = GENERATE(true, false);
  CAPTURE(scenario, more);
  // A real driver may allow mapping a part of a chunk.
  if (scenario == "chunk" && !more && !IsFake(*device)) return;
  const ExporterProcess exporter(scenario, device->uuid());
  Exported exported = exporter.Receive();
  REQUIRE(exported.error.empty());
  // The region of the largest legacy allocation, otherwise the first region.
  RegionHandle handle = exported.regions[0];
  for (const RegionHandle& region : exported.regions) {
    if (scenario == "legacy" && region.size_bytes > handle.size_bytes) handle = region;
  }
  const uint64_t declared = more ? handle.size_bytes + 4 * kMiB : handle.size_bytes - 2 * kMiB;
  if (declared == 0) return;  // the first region is the pool's smallest
  handle.size_bytes = declared;
  handle.cuda->chunks[0].size_bytes = declared;
  const Status refused = ImportChanged(device, exported, handle);
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  const char* const what = scenario == "chunk" ? "a chunk" : "an allocation";
  CHECK_THAT(ToString(refused), Catch::Contains(fmt::format("expected {} of {}", what, declared)));
}

TEST_CASE("inconsistent handles are refused before the driver is called", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  const std::string bytes(kDriverHandleBytes, 'x');
  const auto import = [&](std::vector<CudaChunkHandle> chunks, uint64_t size) {
    const RegionHandle handle{
        .size_bytes = size,
        .cuda = CudaRegionHandle{.device_uuid = device->uuid(), .chunks = std::move(chunks)}};
    return CudaRegion::Import(device, handle, {}).status().code();
  };
  using Kind = CudaChunkHandle::Kind;
  const CudaChunkHandle legacy{.kind = Kind::kLegacyIpc, .size_bytes = kMiB, .bytes = bytes};
  const CudaChunkHandle pooled{.kind = Kind::kPoolPointer, .size_bytes = kMiB, .bytes = bytes};
  CudaChunkHandle shorter = legacy;
  shorter.bytes.pop_back();
  const CudaChunkHandle odd{.kind = Kind::kFabric, .size_bytes = kMiB + 1, .bytes = bytes};
  const CudaChunkHandle described{.kind = Kind::kDescriptor, .size_bytes = 2 * kMiB};

  CHECK(import({}, kMiB) == absl::StatusCode::kInvalidArgument);
  CHECK(import({legacy}, kMiB + 1) == absl::StatusCode::kInvalidArgument);
  CHECK(import({legacy}, kMiB - 1) == absl::StatusCode::kInvalidArgument);
  CHECK(import({shorter}, kMiB) == absl::StatusCode::kInvalidArgument);
  CHECK(import({odd}, kMiB + 1) == absl::StatusCode::kInvalidArgument);
  CHECK(import({described}, 2 * kMiB) == absl::StatusCode::kInvalidArgument);  // no descriptor
  CHECK(import({pooled}, kMiB) == absl::StatusCode::kInvalidArgument);         // no pool was opened
  CHECK(import({legacy, legacy}, 2 * kMiB) == absl::StatusCode::kUnimplemented);
  CHECK(CudaRegion::Import(device, {.size_bytes = kMiB}, {}).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a legacy handle of the same process is refused", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  const Result<std::unique_ptr<OwnedMemory>> memory = MakeScenario("legacy", device);
  REQUIRE(memory.ok());
  const Result<ExportedMemory> exported = ExportMemory(*device, (*memory)->ranges);
  REQUIRE(exported.ok());
  const Status refused = CudaRegion::Import(device, exported->regions[0], {}).status();
  INFO(ToString(refused));
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(ToString(refused), Catch::Contains("PID namespace"));
}

TEST_CASE("a legacy handle of a dead process is refused and the error says what it needs",
          "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  ExporterProcess exporter("legacy", device->uuid());
  const Exported exported = exporter.Receive();
  REQUIRE(exported.error.empty());
  exporter.Kill();
  const Status refused = CudaRegion::Import(device, exported.regions[0], {}).status();
  INFO(ToString(refused));
  CHECK(!refused.ok());
  CHECK_THAT(ToString(refused), Catch::Contains("alive") && Catch::Contains("--pid"));
}

TEST_CASE("regions of a dead exporter are unmapped and the device still works", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  const std::string scenario = GENERATE("legacy", "chunks", "pool");
  CAPTURE(scenario);
  {
    ExporterProcess exporter(scenario, device->uuid());
    Exported exported = exporter.Receive();
    std::vector<CudaRegion> regions = ImportAll(device, exported);
    exporter.Kill();
    regions.clear();  // unmaps the memory of the dead exporter
  }
  const Result<CudaBuffer> buffer = device->Allocate(kMiB);
  REQUIRE(buffer.ok());
  WriteDevice(*device, buffer->address(), Pattern(1, kMiB));
  CHECK(ReadDevice(*device, buffer->address(), kMiB) == Pattern(1, kMiB));
}

TEST_CASE("a moved region is unmapped once", "[cuda]") {
  const CudaDevicePtr device = OpenDevice();
  const ExporterProcess exporter("chunk", device->uuid());
  Exported exported = exporter.Receive();
  std::vector<CudaRegion> regions = ImportAll(device, exported);
  CudaRegion moved = std::move(regions[0]);
  CHECK(regions[0].size_bytes() == 0);
  CHECK(regions[0].device() == nullptr);
  CHECK(moved.device() == device);
  const uint64_t address = moved.address();
  moved = CudaRegion();
  size_t size = 0;
  REQUIRE(device->Enter().ok());
  CHECK(device->driver().api().mem_get_address_range(nullptr, &size, address) !=
        DriverResult::kSuccess);
}

}  // namespace
}  // namespace dws::cuda
