#include "tests/common/memory/cuda/export_scenarios.h"

#include <utility>

namespace dws::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// cudaMalloc: sizes that are not multiples of anything, ranges at odd offsets.
class Allocations : public OwnedMemory {
 public:
  Status Make(const CudaDevicePtr& device, const std::vector<uint64_t>& sizes) {
    for (const uint64_t size : sizes) {
      DWS_ASSIGN_OR_RETURN(CudaBuffer buffer, device->Allocate(size));
      buffers.push_back(std::move(buffer));
    }
    return OkStatus();
  }
  std::vector<CudaBuffer> buffers;
};

Result<std::unique_ptr<OwnedMemory>> Legacy(const CudaDevicePtr& device) {
  auto memory = std::make_unique<Allocations>();
  DWS_RETURN_IF_ERROR(memory->Make(device, {5 * kMiB + 3, 100'001, 3 * kMiB}));
  const auto at = [&](size_t b) { return memory->buffers[b].address(); };
  memory->ranges = {{at(2) + 1, 999},
                    {at(0) + 4097, 4 * kMiB},
                    {at(1) + 7, 50'000},
                    {at(0) + 3, 4001},
                    {at(1) + 99'999, 2}};
  return memory;
}

Result<std::unique_ptr<OwnedMemory>> Tensors(const CudaDevicePtr& device) {
  constexpr size_t kTensors = 5000;
  auto memory = std::make_unique<Allocations>();
  DWS_RETURN_IF_ERROR(memory->Make(device, {4 * kMiB, 4 * kMiB, 4 * kMiB}));
  for (size_t t = 0; t < kTensors; ++t) {
    memory->ranges.push_back(
        {memory->buffers[t % 3].address() + t / 3 * 2000 + t % 7, 64 + t % 900});
  }
  return memory;
}

// VMM: chunks of these sizes side by side; a size of 0 makes a hole.
class Chunks : public OwnedMemory {
 public:
  explicit Chunks(CudaDevicePtr device) : device_(std::move(device)) {}
  ~Chunks() override {
    const DriverApi& api = device_->driver().api();
    for (const auto& [address, size] : mapped_) (void)api.chunk_unmap(address, size);
    if (base != 0) (void)api.address_free(base, size_);
  }

  Status Make(HandleType types, const std::vector<uint64_t>& chunk_sizes) {
    const CudaDriver& driver = device_->driver();
    const DriverApi& api = driver.api();
    for (const uint64_t size : chunk_sizes) size_ += size;
    DWS_RETURN_IF_ERROR(device_->Enter());
    DWS_RETURN_IF_ERROR(driver.Check(api.address_reserve(&base, size_, 2 * kMiB, 0, 0), "reserve"));
    const MemLocation here = {.type = LocationType::kDevice, .id = device_->ordinal()};
    const MemAllocationProperties properties = {
        .type = AllocationType::kPinned, .handle_types = types, .location = here};
    const MemAccess access = {.location = here, .flags = AccessFlags::kReadWrite};
    uint64_t address = base;
    for (const uint64_t size : chunk_sizes) {
      uint64_t handle = 0;
      DWS_RETURN_IF_ERROR(
          driver.Check(api.chunk_create(&handle, size, &properties, 0), "cuMemCreate"));
      DWS_RETURN_IF_ERROR(driver.Check(api.chunk_map(address, size, 0, handle, 0), "cuMemMap"));
      DWS_RETURN_IF_ERROR(driver.Check(api.chunk_release(handle), "cuMemRelease"));
      DWS_RETURN_IF_ERROR(driver.Check(api.set_access(address, size, &access, 1), "access"));
      mapped_.emplace_back(address, size);
      address += size;
    }
    return OkStatus();
  }
  uint64_t base = 0;

 private:
  CudaDevicePtr device_;
  uint64_t size_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> mapped_;
};

Result<std::unique_ptr<OwnedMemory>> OneChunk(const CudaDevicePtr& device, HandleType types) {
  auto memory = std::make_unique<Chunks>(device);
  DWS_RETURN_IF_ERROR(memory->Make(types, {4 * kMiB}));
  memory->ranges = {{memory->base + 5, 3 * kMiB}, {memory->base + 4 * kMiB - 9, 9}};
  return memory;
}

// The second range spans three chunks, the third only the last one; the fourth chunk has no range.
Result<std::unique_ptr<OwnedMemory>> ManyChunks(const CudaDevicePtr& device, HandleType types) {
  auto memory = std::make_unique<Chunks>(device);
  DWS_RETURN_IF_ERROR(memory->Make(types, {2 * kMiB, 4 * kMiB, 2 * kMiB, 2 * kMiB, 6 * kMiB}));
  const uint64_t base = memory->base;
  memory->ranges = {{base + 11, 1000},
                    {base + 2 * kMiB - 1, 5 * kMiB},
                    {base + 10 * kMiB + 1, 4 * kMiB},
                    {base + 7 * kMiB + 1, 13}};
  return memory;
}

// Memory of a pool; a null `pool` is the device's default pool.
class Pooled : public OwnedMemory {
 public:
  explicit Pooled(CudaDevicePtr device) : device_(std::move(device)) {}
  ~Pooled() override {
    const DriverApi& api = device_->driver().api();
    for (const uint64_t address : addresses) (void)api.mem_free(address);
    if (pool_ != nullptr) (void)api.pool_destroy(pool_);
  }

  Status Make(bool own_pool, const std::vector<uint64_t>& sizes) {
    const CudaDriver& driver = device_->driver();
    const DriverApi& api = driver.api();
    DWS_RETURN_IF_ERROR(device_->Enter());
    if (own_pool) {
      const MemPoolProperties properties = {
          .type = AllocationType::kPinned,
          .handle_types = HandleType::kDescriptor,
          .location = {.type = LocationType::kDevice, .id = device_->ordinal()}};
      DWS_RETURN_IF_ERROR(driver.Check(api.pool_create(&pool_, &properties), "cuMemPoolCreate"));
    }
    DWS_ASSIGN_OR_RETURN(const CudaStream stream, device_->CreateStream());
    for (const uint64_t size : sizes) {
      uint64_t address = 0;
      // Stream 0 of the driver is synchronous: the memory is allocated when this returns.
      DWS_RETURN_IF_ERROR(
          driver.Check(own_pool ? api.alloc_from_pool_async(&address, size, pool_, nullptr)
                                : api.alloc_async(&address, size, nullptr),
                       "cuMemAllocAsync"));
      DWS_RETURN_IF_ERROR(driver.Check(api.stream_synchronize(nullptr), "synchronize"));
      addresses.push_back(address);
    }
    return OkStatus();
  }
  std::vector<uint64_t> addresses;

 private:
  CudaDevicePtr device_;
  void* pool_ = nullptr;
};

Result<std::unique_ptr<OwnedMemory>> FromPool(const CudaDevicePtr& device, bool own_pool) {
  auto memory = std::make_unique<Pooled>(device);
  DWS_RETURN_IF_ERROR(memory->Make(own_pool, {3 * kMiB, 2 * kMiB, 5 * kMiB}));
  for (const uint64_t address : memory->addresses) memory->ranges.push_back({address + 9, kMiB});
  return memory;
}

}  // namespace

Result<std::unique_ptr<OwnedMemory>> MakeScenario(const std::string& name, CudaDevicePtr device) {
  if (name == "legacy") return Legacy(device);
  if (name == "tensors") return Tensors(device);
  if (name == "chunk") return OneChunk(device, HandleType::kDescriptor);
  if (name == "chunks") return ManyChunks(device, HandleType::kDescriptor);
  if (name == "fabric") return ManyChunks(device, HandleType::kFabric);
  if (name == "unshared") return OneChunk(device, HandleType::kNone);
  if (name == "pool") return FromPool(device, true);
  if (name == "default pool") return FromPool(device, false);
  return InvalidArgumentError("there is no scenario {}", name);
}

}  // namespace dws::cuda
