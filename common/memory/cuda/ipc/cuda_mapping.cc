#include "common/memory/cuda/ipc/cuda_mapping.h"

#include <cstring>
#include <utility>

namespace dws::cuda {
namespace {

using Kind = CudaChunkHandle::Kind;

// Small allocations share a block of this size, and the driver may report the block for them.
constexpr uint64_t kSharedBlockBytes = uint64_t{2} << 20;

constexpr const char* kLegacyRemedy =
    "its owner must be alive and share this process's IPC and PID namespaces (for Docker --ipc and "
    "--pid, for Kubernetes one pod with shareProcessNamespace)";
constexpr const char* kDescriptorRemedy =
    "its owner must be alive and use the same driver; both processes must see the same device";
constexpr const char* kPeerRemedy =
    "its owner must be alive and use the same driver, and the device must reach the memory's "
    "device directly (nvidia-smi topo -p2p r)";
constexpr const char* kFabricRemedy =
    "fabric handles need an IMEX channel in both containers (/dev/nvidia-caps-imex-channels); let "
    "the owner allocate with POSIX descriptors instead";
constexpr const char* kPoolRemedy =
    "the pool must have been made with POSIX descriptors as its handle type; the default pool of "
    "cudaMallocAsync cannot be shared";

template <typename T>
T HandleOf(const CudaChunkHandle& chunk) {
  static_assert(sizeof(T) == kDriverHandleBytes);
  T handle;
  std::memcpy(&handle, chunk.bytes.data(), sizeof(handle));
  return handle;
}

// The driver takes descriptors as pointers.
void* AsShareable(int descriptor) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));  // NOLINT
}

// Checks that the driver reports, from `address` on, the declared size.
Status CheckSize(const CudaDevice& device, uint64_t address, uint64_t declared) {
  uint64_t base = 0;
  size_t size = 0;
  DWS_RETURN_IF_ERROR(
      device.driver().Check(device.driver().api().mem_get_address_range(&base, &size, address),
                            "cuMemGetAddressRange of imported memory"));
  const uint64_t found = base <= address && address - base <= size ? size - (address - base) : 0;
  if (found < declared || size - declared >= kSharedBlockBytes) {
    return InvalidArgumentError(
        "expected an allocation of {} bytes on device {}, the driver finds {}", declared,
        device.uuid(), found < declared ? found : size);
  }
  return OkStatus();
}

// Checks that memory lies on this device: another device's memory could be mapped too, but is slow
// to compute with.
Status CheckDevice(const CudaDevice& device, int found, Home home) {
  if (found == device.ordinal() || home == Home::kPeer) return OkStatus();
  return InvalidArgumentError(
      "expected memory of device {} (number {} here), the driver finds it on number {}",
      device.uuid(), device.ordinal(), found);
}

Status CheckOrdinal(const CudaDevice& device, uint64_t address, Home home) {
  int ordinal = -1;
  DWS_RETURN_IF_ERROR(
      device.driver().Check(device.driver().api().pointer_get_attribute(
                                &ordinal, PointerAttribute::kDeviceOrdinal, address),
                            "cuPointerGetAttribute of imported memory"));
  return CheckDevice(device, ordinal, home);
}

// Holds the driver's handle of an imported chunk and releases it.
class ImportedChunk {
 public:
  ImportedChunk(const CudaDevice& device, uint64_t handle) : device_(device), handle_(handle) {}
  ImportedChunk(const ImportedChunk&) = delete;
  ImportedChunk& operator=(const ImportedChunk&) = delete;
  ~ImportedChunk() { (void)device_.driver().api().chunk_release(handle_); }

  uint64_t get() const { return handle_; }

 private:
  const CudaDevice& device_;
  uint64_t handle_;
};

// Returns whether cuMemMap refuses the size of an imported chunk. For a size beyond the chunk's the
// manual says INVALID_VALUE; driver 580 answers that it is not supported or not permitted. Neither
// can mean the device here: the chunk has been imported, and the device's granularity is known.
bool RefusesSize(DriverResult result) {
  return result == DriverResult::kInvalidValue || result == DriverResult::kNotSupported ||
         result == DriverResult::kNotPermitted;
}

// Maps one chunk at `address`.
Status MapChunk(const CudaDevice& device, const CudaChunkHandle& chunk, int descriptor,
                uint64_t address, Home home) {
  const DriverApi& api = device.driver().api();
  const bool fabric = chunk.kind == Kind::kFabric;
  FabricHandle fabric_handle = {};
  if (fabric) fabric_handle = HandleOf<FabricHandle>(chunk);
  void* const shareable = fabric ? static_cast<void*>(&fabric_handle) : AsShareable(descriptor);
  uint64_t handle = 0;
  DWS_RETURN_IF_ERROR(ImportError(
      device,
      api.chunk_import(&handle, shareable, fabric ? HandleType::kFabric : HandleType::kDescriptor),
      fabric ? "cuMemImportFromShareableHandle of a fabric handle"
             : "cuMemImportFromShareableHandle of a POSIX descriptor",
      fabric ? kFabricRemedy : kDescriptorRemedy));
  const ImportedChunk imported(device, handle);  // a mapping does not need the handle
  MemAllocationProperties properties = {};
  DWS_RETURN_IF_ERROR(
      device.driver().Check(api.chunk_properties(&properties, imported.get()),
                            "cuMemGetAllocationPropertiesFromHandle of an imported chunk"));
  if (properties.location.type != LocationType::kDevice) {
    return InvalidArgumentError("expected memory of device {}, found a chunk that lies elsewhere",
                                device.uuid());
  }
  DWS_RETURN_IF_ERROR(CheckDevice(device, properties.location.id, home));
  const DriverResult mapped = api.chunk_map(address, chunk.size_bytes, 0, imported.get(), 0);
  if (RefusesSize(mapped)) {
    return InvalidArgumentError(
        "expected a chunk of {} bytes, the driver cannot map that size ({}): hand over whole "
        "chunks",
        chunk.size_bytes, Message(device.driver().Check(mapped, "cuMemMap of an imported chunk")));
  }
  return ImportError(device, mapped, "cuMemMap of an imported chunk", kDescriptorRemedy);
}

}  // namespace

Status CudaRegion::Mapping::ImportLegacy(const CudaChunkHandle& chunk, Mapping& mapping) {
  const CudaDevice& device = *mapping.device;
  const DriverApi& api = device.driver().api();
  uint64_t address = 0;
  const DriverResult opened =
      api.ipc_open_handle(&address, HandleOf<IpcMemHandle>(chunk), kIpcLazyEnablePeerAccess);
  if (opened == DriverResult::kInvalidContext) {
    return FailedPreconditionError(
        "expected memory of another process, found a legacy handle that this process exported "
        "({}); "
        "if it did not, its owner has this process's PID in another PID namespace: share it",
        Message(device.driver().Check(opened, "cuIpcOpenMemHandle")));
  }
  DWS_RETURN_IF_ERROR(ImportError(device, opened, "cuIpcOpenMemHandle", kLegacyRemedy));
  mapping.kind = Kind::kLegacyIpc;
  mapping.address = address;  // from now on the destructor closes it
  DWS_RETURN_IF_ERROR(CheckSize(device, address, chunk.size_bytes));
  return CheckOrdinal(device, address, mapping.home);
}

Status CudaRegion::Mapping::ImportChunks(const std::vector<CudaChunkHandle>& chunks,
                                         const std::vector<UniqueFd>& descriptors,
                                         Mapping& mapping) {
  const CudaDevice& device = *mapping.device;
  const DriverApi& api = device.driver().api();
  const MemLocation here = {.type = LocationType::kDevice, .id = device.ordinal()};
  const MemAllocationProperties properties = {.type = AllocationType::kPinned, .location = here};
  size_t granularity = 0;
  DWS_RETURN_IF_ERROR(ImportError(
      device, api.allocation_granularity(&granularity, &properties, Granularity::kMinimum),
      "cuMemGetAllocationGranularity", kDescriptorRemedy));
  for (const CudaChunkHandle& chunk : chunks) {
    if (granularity == 0 || chunk.size_bytes % granularity != 0) {
      return InvalidArgumentError("expected a chunk of a multiple of {} bytes, found one of {}",
                                  granularity, chunk.size_bytes);
    }
  }
  uint64_t address = 0;
  DWS_RETURN_IF_ERROR(ImportError(
      device, api.address_reserve(&address, mapping.size_bytes, granularity, 0, 0),
      "cuMemAddressReserve", "there may be no address space left: attach fewer engines"));
  mapping.kind = Kind::kDescriptor;
  mapping.address = address;
  size_t next_descriptor = 0;
  uint64_t offset = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const bool described = chunks[c].kind == Kind::kDescriptor;
    const int descriptor = described ? descriptors[next_descriptor++].get() : -1;
    DWS_RETURN_IF_ERROR(
        Annotate(MapChunk(device, chunks[c], descriptor, address + offset, mapping.home),
                 fmt::format("chunk {}", c)));
    mapping.mapped.push_back(chunks[c].size_bytes);
    offset += chunks[c].size_bytes;
  }
  const MemAccess access = {.location = here, .flags = AccessFlags::kReadWrite};
  return ImportError(device, api.set_access(address, mapping.size_bytes, &access, 1),
                     "cuMemSetAccess",
                     mapping.home == Home::kPeer ? kPeerRemedy : kDescriptorRemedy);
}

Status CudaRegion::Mapping::ImportPooled(const CudaChunkHandle& chunk, const UniqueFd& descriptor,
                                         CudaPoolPtr& pool, Mapping& mapping) {
  const CudaDevice& device = *mapping.device;
  if (descriptor.valid()) {
    DWS_ASSIGN_OR_RETURN(pool, CudaPool::Import(mapping.device, descriptor));
  }
  if (pool == nullptr || pool->device() != mapping.device) {
    return InvalidArgumentError(
        "expected the descriptor of a memory pool with its first allocation on device {}, found "
        "none",
        device.uuid());
  }
  PoolPointerHandle pointer = HandleOf<PoolPointerHandle>(chunk);
  uint64_t address = 0;
  DWS_RETURN_IF_ERROR(ImportError(
      device, device.driver().api().pool_import_pointer(&address, pool->get(), &pointer),
      "cuMemPoolImportPointer", kPoolRemedy));
  mapping.kind = Kind::kPoolPointer;
  mapping.pool = pool;
  mapping.address = address;
  DWS_RETURN_IF_ERROR(CheckSize(device, address, chunk.size_bytes));
  return CheckOrdinal(device, address, mapping.home);
}

CudaRegion::Mapping::~Mapping() {
  if (address == 0 || !device->Enter().ok()) return;
  const DriverApi& api = device->driver().api();
  switch (kind) {
    case Kind::kLegacyIpc:
      (void)api.ipc_close_handle(address);
      break;
    case Kind::kPoolPointer:
      (void)api.mem_free(address);
      break;
    case Kind::kDescriptor:
    case Kind::kFabric: {
      uint64_t end = address;
      for (const uint64_t bytes : mapped) end += bytes;
      for (; !mapped.empty(); mapped.pop_back()) {
        end -= mapped.back();
        (void)api.chunk_unmap(end, mapped.back());
      }
      (void)api.address_free(address, size_bytes);
      break;
    }
  }
}

Result<CudaPoolPtr> CudaPool::Import(CudaDevicePtr device, const UniqueFd& descriptor) {
  void* pool = nullptr;
  DWS_RETURN_IF_ERROR(
      ImportError(*device,
                  device->driver().api().pool_import(&pool, AsShareable(descriptor.get()),
                                                     HandleType::kDescriptor, 0),
                  "cuMemPoolImportFromShareableHandle", kPoolRemedy));
  CudaPoolPtr owner(new CudaPool(device, pool));
  const MemAccess access = {.location = {.type = LocationType::kDevice, .id = device->ordinal()},
                            .flags = AccessFlags::kReadWrite};
  DWS_RETURN_IF_ERROR(ImportError(*device, device->driver().api().pool_set_access(pool, &access, 1),
                                  "cuMemPoolSetAccess of an imported pool", kPoolRemedy));
  return owner;
}

CudaPool::~CudaPool() {
  if (device_->Enter().ok()) (void)device_->driver().api().pool_destroy(pool_);
}

}  // namespace dws::cuda
