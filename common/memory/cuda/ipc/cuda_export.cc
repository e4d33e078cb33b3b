#include "common/memory/cuda/ipc/cuda_export.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace dws::cuda {
namespace {

using Kind = CudaChunkHandle::Kind;

template <typename T>
std::string BytesOf(const T& handle) {
  static_assert(sizeof(T) == kDriverHandleBytes);
  return {reinterpret_cast<const char*>(handle.bytes), sizeof(handle.bytes)};
}

// Holds the driver's handle of a chunk and releases it.
class RetainedChunk {
 public:
  RetainedChunk(const DriverApi& api, uint64_t handle) : api_(api), handle_(handle) {}
  RetainedChunk(const RetainedChunk&) = delete;
  RetainedChunk& operator=(const RetainedChunk&) = delete;
  ~RetainedChunk() { (void)api_.chunk_release(handle_); }

  uint64_t get() const { return handle_; }

 private:
  const DriverApi& api_;
  uint64_t handle_;
};

class Exporter {
 public:
  explicit Exporter(const CudaDevice& device)
      : device_(device), driver_(device.driver()), api_(device.driver().api()) {}

  // Call it in the order of the ranges' addresses.
  Result<ExportedMemory::Place> Add(const DeviceRange& range);
  ExportedMemory Take() { return std::move(exported_); }

 private:
  bool Covered(const DeviceRange& range) const {
    return !exported_.regions.empty() && range.address >= base_ &&
           range.address - base_ < region().size_bytes &&
           range.size_bytes <= region().size_bytes - (range.address - base_);
  }
  RegionHandle& region() { return exported_.regions.back(); }
  const RegionHandle& region() const { return exported_.regions.back(); }

  template <typename T>
  Result<T> Ask(PointerAttribute attribute, uint64_t address, const char* what) const {
    T value = {};
    DWS_RETURN_IF_ERROR(
        driver_.Check(api_.pointer_get_attribute(&value, attribute, address), what));
    return value;
  }

  Status CheckDevice(const DeviceRange& range) const;
  void OpenRegion(uint64_t base);
  void AddChunk(CudaChunkHandle chunk, UniqueFd descriptor);
  Status AddLegacy(const DeviceRange& range);
  Status AddPooled(const DeviceRange& range, void* pool);
  // Appends chunks, beginning with the one that contains `address`, until the region reaches `end`.
  Status AddChunks(uint64_t address, uint64_t end);
  Result<CudaChunkHandle> DescribeChunk(uint64_t address, uint64_t size, UniqueFd& descriptor);

  const CudaDevice& device_;
  const CudaDriver& driver_;
  const DriverApi& api_;
  ExportedMemory exported_;
  uint64_t base_ = 0;     // of the last region
  bool chunked_ = false;  // the last region is made of VMM chunks
  void* pool_ = nullptr;  // the pool that was exported last
};

Status Exporter::CheckDevice(const DeviceRange& range) const {
  int ordinal = -1;
  const DriverResult asked =
      api_.pointer_get_attribute(&ordinal, PointerAttribute::kDeviceOrdinal, range.address);
  if (range.size_bytes == 0 || asked != DriverResult::kSuccess || ordinal != device_.ordinal()) {
    return InvalidArgumentError(
        "expected memory of device {}, found {} bytes at {:#x} that are not", device_.uuid(),
        range.size_bytes, range.address);
  }
  return OkStatus();
}

void Exporter::OpenRegion(uint64_t base) {
  base_ = base;
  exported_.regions.push_back(
      {.size_bytes = 0, .cuda = CudaRegionHandle{.device_uuid = device_.uuid(), .chunks = {}}});
}

void Exporter::AddChunk(CudaChunkHandle chunk, UniqueFd descriptor) {
  region().size_bytes += chunk.size_bytes;
  region().cuda->chunks.push_back(std::move(chunk));
  if (descriptor.valid()) exported_.descriptors.push_back(std::move(descriptor));
}

Status Exporter::AddLegacy(const DeviceRange& range) {
  uint64_t base = 0;
  size_t size = 0;
  DWS_RETURN_IF_ERROR(driver_.Check(api_.mem_get_address_range(&base, &size, range.address),
                                    "cuMemGetAddressRange"));
  IpcMemHandle handle = {};
  DWS_RETURN_IF_ERROR(driver_.Check(api_.ipc_get_handle(&handle, base), "cuIpcGetMemHandle"));
  chunked_ = false;
  OpenRegion(base);
  AddChunk({.kind = Kind::kLegacyIpc, .size_bytes = size, .bytes = BytesOf(handle)}, UniqueFd());
  return OkStatus();
}

Status Exporter::AddPooled(const DeviceRange& range, void* pool) {
  uint64_t base = 0;
  size_t size = 0;
  DWS_RETURN_IF_ERROR(driver_.Check(api_.mem_get_address_range(&base, &size, range.address),
                                    "cuMemGetAddressRange"));
  int fd = -1;
  if (pool != pool_) {
    const DriverResult result = api_.pool_export(&fd, pool, HandleType::kDescriptor, 0);
    if (result != DriverResult::kSuccess) {
      return UnimplementedError(
          "memory at {:#x} is of a memory pool that cannot be shared ({}): the default pool of "
          "cudaMallocAsync never can; for PyTorch set PYTORCH_CUDA_ALLOC_CONF=backend:native, "
          "elsewhere allocate from a pool made with POSIX descriptors as its handle type",
          range.address, Message(driver_.Check(result, "cuMemPoolExportToShareableHandle")));
    }
  }
  UniqueFd descriptor(fd);
  PoolPointerHandle pointer = {};
  DWS_RETURN_IF_ERROR(
      driver_.Check(api_.pool_export_pointer(&pointer, base), "cuMemPoolExportPointer"));
  chunked_ = false;
  pool_ = pool;
  OpenRegion(base);
  CudaChunkHandle chunk{.kind = Kind::kPoolPointer,
                        .size_bytes = size,
                        .bytes = BytesOf(pointer),
                        .opens_pool = descriptor.valid()};
  AddChunk(std::move(chunk), std::move(descriptor));
  return OkStatus();
}

Result<CudaChunkHandle> Exporter::DescribeChunk(uint64_t address, uint64_t size,
                                                UniqueFd& descriptor) {
  uint64_t handle = 0;
  // Only this call of the driver takes an address as a pointer.
  DWS_RETURN_IF_ERROR(
      driver_.Check(api_.chunk_of_address(&handle, reinterpret_cast<void*>(address)),  // NOLINT
                    "cuMemRetainAllocationHandle"));
  const RetainedChunk chunk(api_, handle);
  MemAllocationProperties properties = {};
  DWS_RETURN_IF_ERROR(driver_.Check(api_.chunk_properties(&properties, chunk.get()),
                                    "cuMemGetAllocationPropertiesFromHandle"));
  const int types = static_cast<int>(properties.handle_types);
  if ((types & static_cast<int>(HandleType::kDescriptor)) != 0) {
    int fd = -1;
    DWS_RETURN_IF_ERROR(
        driver_.Check(api_.chunk_export(&fd, chunk.get(), HandleType::kDescriptor, 0),
                      "cuMemExportToShareableHandle to a POSIX descriptor"));
    descriptor.reset(fd);
    return CudaChunkHandle{.kind = Kind::kDescriptor, .size_bytes = size};
  }
  if ((types & static_cast<int>(HandleType::kFabric)) != 0) {
    FabricHandle fabric = {};
    DWS_RETURN_IF_ERROR(
        driver_.Check(api_.chunk_export(&fabric, chunk.get(), HandleType::kFabric, 0),
                      "cuMemExportToShareableHandle to a fabric handle"));
    return CudaChunkHandle{.kind = Kind::kFabric, .size_bytes = size, .bytes = BytesOf(fabric)};
  }
  return UnimplementedError(
      "memory at {:#x} was allocated without a shareable handle type: allocate it with POSIX "
      "descriptors; for PyTorch set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
      address);
}

Status Exporter::AddChunks(uint64_t address, uint64_t end) {
  while (address < end) {
    DWS_ASSIGN_OR_RETURN(const auto base, Ask<uint64_t>(PointerAttribute::kMappingBase, address,
                                                        "cuPointerGetAttribute of a mapping"));
    DWS_ASSIGN_OR_RETURN(const auto size, Ask<size_t>(PointerAttribute::kMappingSize, address,
                                                      "cuPointerGetAttribute of a mapping"));
    if (base > address || size <= address - base) {
      return InternalError("the driver reports that {:#x} lies in the mapping of {} bytes at {:#x}",
                           address, size, base);
    }
    if (!chunked_) {
      OpenRegion(base);
      chunked_ = true;
    }
    UniqueFd descriptor;
    DWS_ASSIGN_OR_RETURN(CudaChunkHandle chunk, DescribeChunk(base, size, descriptor));
    AddChunk(std::move(chunk), std::move(descriptor));
    address = base + size;
  }
  return OkStatus();
}

Result<ExportedMemory::Place> Exporter::Add(const DeviceRange& range) {
  if (!Covered(range)) {
    DWS_RETURN_IF_ERROR(CheckDevice(range));
    // A boolean; the driver's manual does not give its width, so it is read into zeroed bytes.
    DWS_ASSIGN_OR_RETURN(const auto legacy, Ask<uint64_t>(PointerAttribute::kLegacyIpcCapable,
                                                          range.address, "cuPointerGetAttribute"));
    // A driver that does not know the attribute returns an error: there is no pool then.
    void* pool = nullptr;
    if (api_.pointer_get_attribute(&pool, PointerAttribute::kPool, range.address) !=
        DriverResult::kSuccess) {
      pool = nullptr;
    }
    const uint64_t region_end = chunked_ ? base_ + region().size_bytes : 0;
    if (legacy != 0) {
      DWS_RETURN_IF_ERROR(AddLegacy(range));
    } else if (pool != nullptr) {
      DWS_RETURN_IF_ERROR(AddPooled(range, pool));
    } else if (range.address < region_end) {
      // The range begins in the last region's chunks and ends beyond them.
      DWS_RETURN_IF_ERROR(AddChunks(region_end, range.address + range.size_bytes));
    } else {
      chunked_ = false;
      DWS_RETURN_IF_ERROR(AddChunks(range.address, range.address + range.size_bytes));
    }
  }
  if (!Covered(range)) {
    return InvalidArgumentError(
        "expected {} bytes at {:#x} in one allocation, found {} bytes of one", range.size_bytes,
        range.address, region().size_bytes - (range.address - base_));
  }
  return ExportedMemory::Place{.region = static_cast<uint32_t>(exported_.regions.size() - 1),
                               .offset_bytes = range.address - base_};
}

}  // namespace

Result<ExportedMemory> ExportMemory(const CudaDevice& device, std::span<const DeviceRange> ranges) {
  DWS_RETURN_IF_ERROR(device.Enter());
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return ranges[a].address < ranges[b].address; });
  Exporter exporter(device);
  std::vector<ExportedMemory::Place> places(ranges.size());
  for (const size_t r : order) {
    DWS_ASSIGN_OR_RETURN(places[r], exporter.Add(ranges[r]));
  }
  ExportedMemory exported = exporter.Take();
  exported.places = std::move(places);
  return exported;
}

}  // namespace dws::cuda
