// The fake driver: legacy handles and pools. Both are opened through the exporter's /proc, so they
// die with it, and need its PID namespace.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <utility>

#include "tests/fakes/cuda/fake_state.h"

namespace dws::cuda {
namespace {

constexpr uint32_t kIpcMagic = 0x4350'4901;
constexpr uint32_t kPoolMagic = 0x4350'4902;

template <typename T>
T Pack(const WireHandle& wire) {
  return std::bit_cast<T>(wire);
}

template <typename T>
WireHandle Unpack(const T& handle) {
  return std::bit_cast<WireHandle>(handle);
}

WireHandle Describe(const FakeMemory& memory, uint32_t magic) {
  return {.magic = magic,
          .pid = ::getpid(),
          .fd = memory.fd.get(),
          .device = memory.device,
          .size = memory.size,
          .inode = memory.inode,
          .pool = memory.pool != nullptr ? memory.pool->id : 0,
          .base = memory.base};
}

// Maps what a handle describes. `memory` is its description.
DriverResult MapWire(const WireHandle& wire, FakeMemory memory, uint64_t* address) {
  State& state = TheState();
  if (state.DeviceOfNumber(wire.device) == nullptr) return DriverResult::kInvalidDevice;
  memory.fd = OpenWire(wire);
  if (!memory.fd.valid()) return DriverResult::kMapFailed;
  memory.size = wire.size;
  memory.device = wire.device;
  memory.inode = wire.inode;
  memory.id = state.next_id++;
  memory.base = MapMemory(memory.fd.get(), wire.size, 0, true);
  if (memory.base == 0) return DriverResult::kMapFailed;
  *address = memory.base;
  state.memories[memory.base] = std::move(memory);
  return DriverResult::kSuccess;
}

DriverResult AllocatePooled(const FakePool& pool, size_t size, uint64_t* address) {
  State& state = TheState();
  FakeDevice* const device = state.DeviceOfNumber(pool.device);
  if (size == 0 || device == nullptr) return DriverResult::kInvalidValue;
  if (size > device->capacity - device->used) return DriverResult::kOutOfMemory;
  FakeMemory memory{.kind = FakeMemory::Kind::kPooled,
                    .size = size,
                    .device = pool.device,
                    .handle_types = pool.handle_types,
                    .id = state.next_id++,
                    .pool = &pool};
  memory.fd = MakeMemory("pooled", size, pool.device, pool.handle_types, memory.id);
  memory.inode = memory.fd.valid() ? InodeOf(memory.fd.get()) : 0;
  memory.base = memory.fd.valid() ? MapMemory(memory.fd.get(), size, 0, true) : 0;
  if (memory.base == 0) return DriverResult::kOutOfMemory;
  device->used += size;
  *address = memory.base;
  state.memories[memory.base] = std::move(memory);
  return DriverResult::kSuccess;
}

}  // namespace

DriverResult cuIpcGetMemHandle(IpcMemHandle* handle, uint64_t address) {
  FAKE_CUDA_CALL(kContext);
  const FakeMemory* const memory = TheState().Find(address);
  if (memory == nullptr || memory->kind != FakeMemory::Kind::kAllocated) {
    return DriverResult::kInvalidValue;
  }
  *handle = Pack<IpcMemHandle>(Describe(*memory, kIpcMagic));
  return DriverResult::kSuccess;
}

DriverResult cuIpcOpenMemHandle_v2(uint64_t* address, IpcMemHandle handle, unsigned flags) {
  FAKE_CUDA_CALL(kContext);
  const WireHandle wire = Unpack(handle);
  if (wire.magic != kIpcMagic || flags != kIpcLazyEnablePeerAccess) {
    return DriverResult::kInvalidValue;
  }
  if (wire.pid == ::getpid()) return DriverResult::kInvalidContext;
  for (auto& [base, memory] : TheState().memories) {
    if (memory.kind == FakeMemory::Kind::kIpc && memory.inode == wire.inode) {
      ++memory.opens;
      *address = base;
      return DriverResult::kSuccess;
    }
    // Freed by its owner and still mapped here, while the owner has reused the address.
    if (memory.kind == FakeMemory::Kind::kIpc && memory.owner_pid == wire.pid &&
        memory.owner_base < wire.base + wire.size && wire.base < memory.owner_base + memory.size) {
      return DriverResult::kAlreadyMapped;
    }
  }
  return MapWire(wire,
                 {.kind = FakeMemory::Kind::kIpc, .owner_pid = wire.pid, .owner_base = wire.base},
                 address);
}

DriverResult cuIpcCloseMemHandle(uint64_t address) {
  FAKE_CUDA_CALL(kContext);
  State& state = TheState();
  const auto found = state.memories.find(address);
  if (found == state.memories.end() || found->second.kind != FakeMemory::Kind::kIpc) {
    return DriverResult::kInvalidValue;
  }
  if (--found->second.opens > 0) return DriverResult::kSuccess;
  state.RunAll();
  ::munmap(reinterpret_cast<void*>(address), found->second.size);  // NOLINT
  state.memories.erase(found);
  return DriverResult::kSuccess;
}

DriverResult cuMemPoolCreate(void** pool, const MemPoolProperties* properties) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  const int ordinal = properties->location.id;
  const int types = static_cast<int>(properties->handle_types);
  if (properties->type != AllocationType::kPinned ||
      properties->location.type != LocationType::kDevice || ordinal < 0 ||
      static_cast<size_t>(ordinal) >= state.devices.size()) {
    return DriverResult::kInvalidValue;
  }
  if ((types & ~static_cast<int>(HandleType::kDescriptor)) != 0) return DriverResult::kNotSupported;
  auto made = std::make_unique<FakePool>();
  made->device = state.devices[static_cast<size_t>(ordinal)]->number;
  made->handle_types = types;
  made->pid = ::getpid();
  made->id = state.next_id++;
  made->fd = MakeMemory("pool", 0, made->device, types, made->id);
  *pool = made.get();
  state.pools[*pool] = std::move(made);
  return DriverResult::kSuccess;
}

DriverResult cuMemPoolDestroy(void* pool) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  for (auto& [base, memory] : state.memories) {
    if (memory.pool == pool)
      return DriverResult::kInvalidValue;  // in use; our callers never do that
  }
  return state.pools.erase(pool) == 1 ? DriverResult::kSuccess : DriverResult::kInvalidValue;
}

DriverResult cuMemPoolSetAccess(void* pool, const MemAccess* /*access*/, size_t /*count*/) {
  FAKE_CUDA_CALL(kInit);
  return TheState().pools.count(pool) == 1 ? DriverResult::kSuccess : DriverResult::kInvalidValue;
}

DriverResult cuMemPoolExportToShareableHandle(void* shareable, void* pool, HandleType type,
                                              uint64_t flags) {
  FAKE_CUDA_CALL(kInit);
  const auto found = TheState().pools.find(pool);
  if (found == TheState().pools.end() || flags != 0 || type != HandleType::kDescriptor ||
      (found->second->handle_types & static_cast<int>(type)) == 0) {
    return DriverResult::kInvalidValue;
  }
  const int fd = ::fcntl(found->second->fd.get(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return DriverResult::kOperatingSystem;
  *static_cast<int*>(shareable) = fd;
  return DriverResult::kSuccess;
}

DriverResult cuMemPoolImportFromShareableHandle(void** pool, void* shareable, HandleType type,
                                                uint64_t flags) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  const int fd = static_cast<int>(reinterpret_cast<uintptr_t>(shareable));
  int numbers[4] = {};
  if (flags != 0 || type != HandleType::kDescriptor || !ReadName(fd, "pool", numbers)) {
    return DriverResult::kInvalidValue;
  }
  if (state.DeviceOfNumber(numbers[0]) == nullptr) return DriverResult::kInvalidDevice;
  auto made = std::make_unique<FakePool>();
  made->device = numbers[0];
  made->handle_types = numbers[1];
  made->pid = numbers[2];
  made->id = static_cast<uint64_t>(numbers[3]);
  *pool = made.get();
  state.pools[*pool] = std::move(made);
  return DriverResult::kSuccess;
}

DriverResult cuMemPoolExportPointer(PoolPointerHandle* data, uint64_t address) {
  FAKE_CUDA_CALL(kInit);
  const FakeMemory* const memory = TheState().Find(address);
  if (memory == nullptr || memory->kind != FakeMemory::Kind::kPooled || memory->handle_types == 0) {
    return DriverResult::kInvalidValue;
  }
  *data = Pack<PoolPointerHandle>(Describe(*memory, kPoolMagic));
  return DriverResult::kSuccess;
}

DriverResult cuMemPoolImportPointer(uint64_t* address, void* pool, PoolPointerHandle* data) {
  FAKE_CUDA_CALL(kInit);
  const WireHandle wire = Unpack(*data);
  const auto found = TheState().pools.find(pool);
  if (wire.magic != kPoolMagic || found == TheState().pools.end() ||
      found->second->id != wire.pool || found->second->pid != wire.pid) {
    return DriverResult::kInvalidValue;
  }
  return MapWire(wire,
                 {.kind = FakeMemory::Kind::kImportedPooled,
                  .handle_types = found->second->handle_types,
                  .pool = found->second.get()},
                 address);
}

DriverResult cuMemAllocAsync(uint64_t* address, size_t size, void* /*stream*/) {
  FAKE_CUDA_CALL(kContext);
  return AllocatePooled(CurrentDevice()->default_pool, size, address);
}

DriverResult cuMemAllocFromPoolAsync(uint64_t* address, size_t size, void* pool, void* /*stream*/) {
  FAKE_CUDA_CALL(kContext);
  const auto found = TheState().pools.find(pool);
  if (found == TheState().pools.end() || !found->second->fd.valid()) {
    return DriverResult::kInvalidValue;  // unknown or imported
  }
  return AllocatePooled(*found->second, size, address);
}

DriverResult cuMemFreeAsync(uint64_t address, void* /*stream*/) { return cuMemFree_v2(address); }

}  // namespace dws::cuda
