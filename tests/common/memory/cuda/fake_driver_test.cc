// The fake driver is as strict as any driver may be, so that it finds mistakes of its callers.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/common/memory/cuda/device_fixture.h"

namespace dws::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Sets an environment variable for the lifetime of the object.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  ~Setting() { ::unsetenv(name_); }

 private:
  const char* name_;
};

struct Fake {
  CudaDevicePtr device = OpenDevice();
  const DriverApi& api = device->driver().api();
  CudaBuffer buffer = *device->Allocate(4096);
  CudaStream stream = *device->CreateStream();
};

TEST_CASE("asynchronous work runs only when its stream is waited for", "[cuda]") {
  Fake fake;
  REQUIRE(IsFake(*fake.device));
  Result<CudaBuffer> pinned = fake.device->AllocatePinned(16);
  REQUIRE(pinned.ok());
  REQUIRE(fake.stream.Zero(fake.buffer.address(), 16).ok());
  pinned->host_bytes()[0] = std::byte{7};
  REQUIRE(fake.stream.CopyToHost(pinned->host_bytes(), fake.buffer.address()).ok());
  CHECK(pinned->host_bytes()[0] == std::byte{7});  // a missing wait is visible
  REQUIRE(fake.stream.Synchronize().ok());
  CHECK(pinned->host_bytes()[0] == std::byte{0});
}

TEST_CASE("pageable memory is read before the copy returns", "[cuda]") {
  Fake fake;
  std::vector<std::byte> host(16, std::byte{1});
  REQUIRE(fake.stream.CopyToDevice(fake.buffer.address(), host).ok());
  host.assign(16, std::byte{2});
  CHECK(ReadDevice(*fake.device, fake.buffer.address(), 1)[0] == std::byte{1});
}

TEST_CASE("freeing memory twice and using freed memory are errors", "[cuda]") {
  Fake fake;
  uint64_t address = 0;
  REQUIRE(fake.api.mem_alloc(&address, 4096) == DriverResult::kSuccess);
  CHECK(fake.api.mem_free(address + 8) == DriverResult::kInvalidValue);
  CHECK(fake.api.mem_free(address) == DriverResult::kSuccess);
  CHECK(fake.api.mem_free(address) == DriverResult::kInvalidValue);
  CHECK(!fake.stream.Zero(address, 16).ok());
  CHECK(!fake.stream.Zero(fake.buffer.address() + 4000, 97).ok());
  CHECK(fake.stream.Zero(fake.buffer.address() + 4000, 96).ok());
}

TEST_CASE("calls need the context of their device", "[cuda]") {
  Fake fake;
  uint64_t address = 0;
  REQUIRE(fake.api.context_set_current(nullptr) == DriverResult::kSuccess);
  CHECK(fake.api.mem_alloc(&address, 4096) == DriverResult::kInvalidContext);
  const Result<std::vector<std::string>> uuids = fake.device->driver().DeviceUuids();
  REQUIRE((uuids.ok() && uuids->size() == 2));
  const CudaDevicePtr other = OpenDevice(1);
  REQUIRE(other->Enter().ok());
  void* stream = nullptr;
  REQUIRE(fake.device->Enter().ok());
  REQUIRE(fake.api.stream_create(&stream, kStreamNonBlocking, 0) == DriverResult::kSuccess);
  REQUIRE(other->Enter().ok());
  CHECK(fake.api.set_bytes_async(fake.buffer.address(), 0, 1, stream) ==
        DriverResult::kInvalidHandle);
  REQUIRE(fake.device->Enter().ok());
  CHECK(fake.api.stream_destroy(stream) == DriverResult::kSuccess);
  CHECK(fake.api.stream_destroy(stream) == DriverResult::kInvalidHandle);
}

TEST_CASE("virtual memory must be mapped and accessible to be used and is freed whole", "[cuda]") {
  Fake fake;
  REQUIRE(fake.device->Enter().ok());
  const MemLocation here{.type = LocationType::kDevice, .id = fake.device->ordinal()};
  const MemAllocationProperties properties{
      .type = AllocationType::kPinned, .handle_types = HandleType::kDescriptor, .location = here};
  const MemAccess access{.location = here, .flags = AccessFlags::kReadWrite};
  uint64_t range = 0;
  uint64_t chunk = 0;
  CHECK(fake.api.chunk_create(&chunk, kMiB, &properties, 0) == DriverResult::kInvalidValue);
  REQUIRE(fake.api.address_reserve(&range, 8 * kMiB, 0, 0, 0) == DriverResult::kSuccess);
  REQUIRE(fake.api.chunk_create(&chunk, 4 * kMiB, &properties, 0) == DriverResult::kSuccess);
  CHECK(fake.api.chunk_map(range + kMiB, 4 * kMiB, 0, chunk, 0) == DriverResult::kInvalidValue);
  CHECK(fake.api.chunk_map(range, 8 * kMiB, 0, chunk, 0) == DriverResult::kNotSupported);
  CHECK(!fake.stream.Zero(range, 1).ok());
  REQUIRE(fake.api.chunk_map(range, 4 * kMiB, 0, chunk, 0) == DriverResult::kSuccess);
  CHECK(fake.api.chunk_map(range + 2 * kMiB, 4 * kMiB, 0, chunk, 0) == DriverResult::kInvalidValue);
  CHECK(!fake.stream.Zero(range, 1).ok());  // no access yet
  CHECK(fake.api.set_access(range, 8 * kMiB, &access, 1) == DriverResult::kInvalidValue);
  REQUIRE(fake.api.set_access(range, 4 * kMiB, &access, 1) == DriverResult::kSuccess);
  CHECK(fake.stream.Zero(range, 4 * kMiB).ok());
  CHECK(fake.api.chunk_release(chunk) == DriverResult::kSuccess);
  CHECK(fake.api.address_free(range, 8 * kMiB) == DriverResult::kInvalidValue);  // still mapped
  CHECK(fake.api.chunk_unmap(range, 2 * kMiB) == DriverResult::kInvalidValue);
  CHECK(fake.api.chunk_unmap(range, 4 * kMiB) == DriverResult::kSuccess);
  CHECK(fake.api.chunk_release(chunk) == DriverResult::kInvalidValue);  // freed with its mapping
  CHECK(fake.api.address_free(range, 4 * kMiB) == DriverResult::kInvalidValue);
  CHECK(fake.api.address_free(range, 8 * kMiB) == DriverResult::kSuccess);
}

TEST_CASE("a launch with bad arguments fails at the next wait and at every later one", "[cuda]") {
  Fake fake;
  const CommitArgs misaligned{.blocks = fake.buffer.address() + 4, .block_count = 1};
  REQUIRE(fake.stream.Launch(Kernel::kCommit, misaligned, 1).ok());
  CHECK_THAT(ToString(fake.stream.Synchronize()), Catch::Contains("CUDA_ERROR_MISALIGNED_ADDRESS"));
  CHECK(!fake.stream.Synchronize().ok());
  const CudaStream other = *fake.device->CreateStream();
  const CommitArgs nowhere{.blocks = 8, .block_count = 1};
  REQUIRE(other.Launch(Kernel::kCommit, nowhere, 1).ok());
  CHECK_THAT(ToString(other.Synchronize()), Catch::Contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_CASE("the nth call of a function fails on demand", "[cuda]") {
  Fake fake;
  const Setting setting("DWS_FAKE_CUDA_FAIL", "cuMemHostAlloc:2:2,cuMemsetD8Async:1");
  CHECK(fake.device->AllocatePinned(16).ok());
  CHECK(fake.device->AllocatePinned(16).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(fake.device->AllocatePinned(16).ok());
  CHECK_THAT(ToString(fake.stream.Zero(fake.buffer.address(), 1)), Catch::Contains("999"));
  CHECK(fake.stream.Zero(fake.buffer.address(), 1).ok());
}

TEST_CASE("with DWS_FAKE_CUDA_GUARD the host cannot access device memory", "[cuda]") {
  const Setting setting("DWS_FAKE_CUDA_GUARD", "1");
  Fake fake;
  WriteDevice(*fake.device, fake.buffer.address(), Pattern(2, 4096));
  CHECK(ReadDevice(*fake.device, fake.buffer.address(), 4096) == Pattern(2, 4096));
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    *reinterpret_cast<volatile char*>(fake.buffer.address()) = 1;  // NOLINT
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
}

}  // namespace
}  // namespace dws::cuda
