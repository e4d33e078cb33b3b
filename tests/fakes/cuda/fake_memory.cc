// The fake driver: device memory, page-locked host memory, and pointer attributes.
#include <sys/mman.h>

#include <utility>

#include "tests/fakes/cuda/fake_state.h"

namespace dws::cuda {
namespace {

template <typename T>
DriverResult Answer(void* value, T answer) {
  *static_cast<T*>(value) = answer;
  return DriverResult::kSuccess;
}

DriverResult HostAttribute(void* value, PointerAttribute attribute) {
  switch (attribute) {
    case PointerAttribute::kMemoryType:
      return Answer(value, MemoryType::kHost);
    case PointerAttribute::kLegacyIpcCapable:
      return Answer(value, false);
    case PointerAttribute::kAllowedHandleTypes:
      return Answer(value, uint64_t{0});
    default:
      return DriverResult::kInvalidValue;
  }
}

}  // namespace

DriverResult cuMemAlloc_v2(uint64_t* address, size_t size) {
  FAKE_CUDA_CALL(kContext);
  if (size == 0) return DriverResult::kInvalidValue;
  State& state = TheState();
  FakeDevice& device = *CurrentDevice();
  if (size > device.capacity - device.used) return DriverResult::kOutOfMemory;
  FakeMemory memory{.size = size, .device = device.number, .id = state.next_id++};
  memory.fd = MakeMemory("allocation", size, device.number, 0, memory.id);
  memory.inode = memory.fd.valid() ? InodeOf(memory.fd.get()) : 0;
  memory.base = memory.fd.valid() ? MapMemory(memory.fd.get(), size, 0, true) : 0;
  if (memory.base == 0) return DriverResult::kOutOfMemory;
  device.used += size;
  *address = memory.base;
  state.memories[memory.base] = std::move(memory);
  if (state.clock != nullptr) {
    const GpuModel& model = state.clock->model();
    state.TakeTime(size, model.allocate_seconds + model.allocate_each * static_cast<double>(size));
  }
  return DriverResult::kSuccess;
}

DriverResult cuMemFree_v2(uint64_t address) {
  FAKE_CUDA_CALL(kContext);
  if (address == 0) return DriverResult::kSuccess;
  State& state = TheState();
  const auto found = state.memories.find(address);
  if (found == state.memories.end()) return DriverResult::kInvalidValue;
  FakeMemory& memory = found->second;
  if (memory.kind == FakeMemory::Kind::kIpc || memory.kind == FakeMemory::Kind::kChunk) {
    return DriverResult::kInvalidValue;
  }
  state.RunAll();  // like the driver's, this waits for all work
  ::munmap(reinterpret_cast<void*>(memory.base), memory.size);  // NOLINT
  FakeDevice* const device = state.DeviceOfNumber(memory.device);
  if (device != nullptr && memory.kind != FakeMemory::Kind::kImportedPooled) {
    device->used -= memory.size;
  }
  state.memories.erase(found);
  return DriverResult::kSuccess;
}

DriverResult cuMemGetInfo_v2(size_t* free, size_t* total) {
  FAKE_CUDA_CALL(kContext);
  *total = CurrentDevice()->capacity;
  *free = CurrentDevice()->capacity - CurrentDevice()->used;
  return DriverResult::kSuccess;
}

DriverResult cuMemGetAddressRange_v2(uint64_t* base, size_t* size, uint64_t address) {
  FAKE_CUDA_CALL(kContext);
  const FakeMemory* const memory = TheState().Find(address);
  if (memory == nullptr) return DriverResult::kNotFound;
  if (base != nullptr) *base = memory->base;
  if (size != nullptr) *size = memory->size;
  return DriverResult::kSuccess;
}

DriverResult cuMemHostAlloc(void** memory, size_t size, unsigned /*flags*/) {
  FAKE_CUDA_CALL(kContext);
  if (size == 0) return DriverResult::kInvalidValue;
  State& state = TheState();
  // On the clock its pages are the driver's work, not that of who writes to them first.
  const int populate = state.clock != nullptr ? MAP_POPULATE : 0;
  void* const mapped =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | populate, -1, 0);
  if (mapped == MAP_FAILED) return DriverResult::kOutOfMemory;
  state.host[reinterpret_cast<uint64_t>(mapped)] = size;
  state.owned_host[reinterpret_cast<uint64_t>(mapped)] = size;
  if (state.clock != nullptr) {
    state.TakeTime(size, state.clock->model().pin_each * static_cast<double>(size));
  }
  *memory = mapped;
  return DriverResult::kSuccess;
}

DriverResult cuMemFreeHost(void* memory) {
  FAKE_CUDA_CALL(kContext);
  State& state = TheState();
  const auto found = state.owned_host.find(reinterpret_cast<uint64_t>(memory));
  if (found == state.owned_host.end()) return DriverResult::kInvalidValue;
  state.RunAll();
  ::munmap(memory, found->second);
  state.host.erase(found->first);
  state.owned_host.erase(found);
  return DriverResult::kSuccess;
}

DriverResult cuMemHostRegister_v2(void* memory, size_t size, unsigned /*flags*/) {
  FAKE_CUDA_CALL(kContext);
  if (memory == nullptr || size == 0) return DriverResult::kInvalidValue;
  State& state = TheState();
  const auto address = reinterpret_cast<uint64_t>(memory);
  const auto after = state.host.lower_bound(address);
  const bool overlaps =
      (after != state.host.end() && after->first - address < size) ||
      (after != state.host.begin() && address - std::prev(after)->first < std::prev(after)->second);
  if (overlaps) return DriverResult::kHostMemoryAlreadyRegistered;
  state.host[address] = size;
  if (state.clock != nullptr) {
    state.TakeTime(size, state.clock->model().register_each * static_cast<double>(size));
  }
  return DriverResult::kSuccess;
}

DriverResult cuMemHostUnregister(void* memory) {
  FAKE_CUDA_CALL(kContext);
  State& state = TheState();
  const auto address = reinterpret_cast<uint64_t>(memory);
  if (state.host.count(address) == 0 || state.owned_host.count(address) != 0) {
    return DriverResult::kHostMemoryNotRegistered;
  }
  state.RunAll();
  state.host.erase(address);
  return DriverResult::kSuccess;
}

DriverResult cuMemHostGetDevicePointer_v2(uint64_t* address, void* memory, unsigned flags) {
  FAKE_CUDA_CALL(kContext);
  if (flags != 0 || !TheState().InHost(reinterpret_cast<uint64_t>(memory), 1)) {
    return DriverResult::kInvalidValue;
  }
  *address = reinterpret_cast<uint64_t>(memory);
  return DriverResult::kSuccess;
}

DriverResult cuPointerGetAttribute(void* value, PointerAttribute attribute, uint64_t address) {
  FAKE_CUDA_CALL(kContext);
  State& state = TheState();
  const FakeMemory* const memory = state.Find(address);
  if (memory == nullptr) {
    return state.InHost(address, 1) ? HostAttribute(value, attribute) : DriverResult::kInvalidValue;
  }
  switch (attribute) {
    case PointerAttribute::kMemoryType:
      return Answer(value, MemoryType::kDevice);
    case PointerAttribute::kBufferId:
      return Answer(value, memory->id);
    case PointerAttribute::kDeviceOrdinal:
      return Answer(value, state.OrdinalOf(memory->device));
    case PointerAttribute::kLegacyIpcCapable:
      return Answer(value, memory->kind == FakeMemory::Kind::kAllocated);
    case PointerAttribute::kRangeStart:
    case PointerAttribute::kMappingBase:
      return Answer(value, memory->base);
    case PointerAttribute::kRangeSize:
    case PointerAttribute::kMappingSize:
      return Answer(value, memory->size);
    case PointerAttribute::kMapped:
      return Answer(value, true);
    case PointerAttribute::kAllowedHandleTypes:
      return Answer(value, static_cast<uint64_t>(memory->handle_types));
    case PointerAttribute::kPool:
      return Answer(value, static_cast<const void*>(memory->pool));
  }
  return DriverResult::kInvalidValue;
}

}  // namespace dws::cuda
