// The fake driver: virtual memory management. Physical chunks, address ranges, and mappings.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "tests/fakes/cuda/fake_state.h"

namespace dws::cuda {
namespace {

constexpr uint32_t kFabricMagic = 0x4350'4903;
constexpr int kDescriptorBit = static_cast<int>(HandleType::kDescriptor);
constexpr int kFabricBit = static_cast<int>(HandleType::kFabric);

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }  // NOLINT

bool Fabric() { return Variable("DWS_FAKE_CUDA_FABRIC", "0") == "1"; }

bool Aligned(uint64_t value) { return value % kGranularity == 0; }

void Drop(uint64_t handle) {
  State& state = TheState();
  const auto found = state.chunks.find(handle);
  if (found == state.chunks.end() || --found->second.references > 0) return;
  FakeDevice* const device = state.DeviceOfNumber(found->second.device);
  if (device != nullptr && !found->second.imported) device->used -= found->second.size;
  state.chunks.erase(found);
}

bool InReservation(uint64_t address, uint64_t size) {
  const auto& reservations = TheState().reservations;
  auto after = reservations.upper_bound(address);
  if (after == reservations.begin()) return false;
  const auto& [base, bytes] = *std::prev(after);
  return address - base < bytes && size <= bytes - (address - base);
}

// The mappings that make up [address, address + size) exactly; empty if they do not.
std::vector<FakeMemory*> Mappings(uint64_t address, uint64_t size) {
  State& state = TheState();
  std::vector<FakeMemory*> found;
  while (size > 0) {
    const auto at = state.memories.find(address);
    if (at == state.memories.end() || at->second.kind != FakeMemory::Kind::kChunk ||
        at->second.size > size) {
      return {};
    }
    found.push_back(&at->second);
    address += at->second.size;
    size -= at->second.size;
  }
  return found;
}

}  // namespace

DriverResult cuMemGetAllocationGranularity(size_t* granularity,
                                           const MemAllocationProperties* properties,
                                           Granularity /*option*/) {
  FAKE_CUDA_CALL(kInit);
  if (properties->type != AllocationType::kPinned) return DriverResult::kInvalidValue;
  *granularity = kGranularity;
  return DriverResult::kSuccess;
}

DriverResult cuMemCreate(uint64_t* handle, size_t size, const MemAllocationProperties* properties,
                         uint64_t flags) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  const int ordinal = properties->location.id;
  const int types = static_cast<int>(properties->handle_types);
  if (flags != 0 || size == 0 || !Aligned(size) || properties->type != AllocationType::kPinned ||
      properties->location.type != LocationType::kDevice || (types & ~9) != 0) {
    return DriverResult::kInvalidValue;
  }
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= state.devices.size()) {
    return DriverResult::kInvalidDevice;
  }
  if ((types & kFabricBit) != 0 && !Fabric()) return DriverResult::kNotSupported;
  FakeDevice& device = *state.devices[static_cast<size_t>(ordinal)];
  if (size > device.capacity - device.used) return DriverResult::kOutOfMemory;
  FakeChunk chunk{.size = size, .device = device.number, .handle_types = types, .references = 1};
  chunk.fd = MakeMemory("chunk", size, device.number, types, state.next_id);
  if (!chunk.fd.valid()) return DriverResult::kOutOfMemory;
  device.used += size;
  *handle = state.next_id++;
  state.chunks[*handle] = std::move(chunk);
  return DriverResult::kSuccess;
}

DriverResult cuMemRelease(uint64_t handle) {
  FAKE_CUDA_CALL(kInit);
  if (TheState().chunks.count(handle) == 0) return DriverResult::kInvalidValue;
  Drop(handle);
  return DriverResult::kSuccess;
}

DriverResult cuMemAddressReserve(uint64_t* address, size_t size, size_t alignment,
                                 uint64_t /*wanted*/, uint64_t flags) {
  FAKE_CUDA_CALL(kInit);
  if (size == 0 || !Aligned(size) || !Aligned(alignment) || flags != 0) {
    return DriverResult::kInvalidValue;
  }
  // A little more, so that the range can begin at a multiple; the rest is given back.
  void* const mapped = ::mmap(nullptr, size + kGranularity, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return DriverResult::kOutOfMemory;
  const auto begin = reinterpret_cast<uint64_t>(mapped);
  const uint64_t base = (begin + kGranularity - 1) / kGranularity * kGranularity;
  if (base > begin) ::munmap(At(begin), base - begin);
  if (base < begin + kGranularity) ::munmap(At(base + size), begin + kGranularity - base);
  TheState().reservations[base] = size;
  *address = base;
  return DriverResult::kSuccess;
}

DriverResult cuMemAddressFree(uint64_t address, size_t size) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  const auto found = state.reservations.find(address);
  if (found == state.reservations.end() || found->second != size) {
    return DriverResult::kInvalidValue;
  }
  const auto inside = state.memories.lower_bound(address);
  if (inside != state.memories.end() && inside->first - address < size) {
    return DriverResult::kInvalidValue;  // still mapped
  }
  ::munmap(At(address), size);
  state.reservations.erase(found);
  return DriverResult::kSuccess;
}

DriverResult cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle,
                      uint64_t flags) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  const auto found = state.chunks.find(handle);
  if (found == state.chunks.end() || offset != 0 || flags != 0 || !Aligned(address) ||
      !InReservation(address, size)) {
    return DriverResult::kInvalidValue;
  }
  // Driver 580 does not answer kInvalidValue, which the manual says. It may map a part of a chunk.
  if (size > found->second.size) return DriverResult::kNotSupported;
  if (size < found->second.size) return DriverResult::kInvalidValue;
  const auto next = state.memories.lower_bound(address);
  const bool taken = (next != state.memories.end() && next->first - address < size) ||
                     state.Find(address) != nullptr;
  if (taken) return DriverResult::kInvalidValue;
  FakeChunk& chunk = found->second;
  if (MapMemory(chunk.fd.get(), size, address, false) == 0) return DriverResult::kMapFailed;
  ++chunk.references;
  state.memories[address] = FakeMemory{.kind = FakeMemory::Kind::kChunk,
                                       .base = address,
                                       .size = size,
                                       .device = chunk.device,
                                       .handle_types = chunk.handle_types,
                                       .id = state.next_id++,
                                       .chunk = handle,
                                       .accessible = false};
  return DriverResult::kSuccess;
}

DriverResult cuMemUnmap(uint64_t address, size_t size) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  const std::vector<FakeMemory*> mappings = Mappings(address, size);
  if (mappings.empty()) return DriverResult::kInvalidValue;
  state.RunAll();
  for (const FakeMemory* mapping : mappings) {
    ::mmap(At(mapping->base), mapping->size, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    const uint64_t chunk = mapping->chunk;
    state.memories.erase(mapping->base);
    Drop(chunk);
  }
  return DriverResult::kSuccess;
}

DriverResult cuMemSetAccess(uint64_t address, size_t size, const MemAccess* access, size_t count) {
  FAKE_CUDA_CALL(kInit);
  const std::vector<FakeMemory*> mappings = Mappings(address, size);
  if (mappings.empty() || count != 1 || access->location.type != LocationType::kDevice) {
    return DriverResult::kInvalidValue;
  }
  const bool accessible = access->flags == AccessFlags::kReadWrite;
  for (FakeMemory* mapping : mappings) {
    mapping->accessible = accessible;
    const int protection = accessible && !Guarded() ? PROT_READ | PROT_WRITE : PROT_NONE;
    ::mprotect(At(mapping->base), mapping->size, protection);
  }
  return DriverResult::kSuccess;
}

DriverResult cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  const FakeMemory* const memory = state.Find(reinterpret_cast<uint64_t>(address));
  if (memory == nullptr || memory->kind != FakeMemory::Kind::kChunk) {
    return DriverResult::kInvalidValue;
  }
  ++state.chunks[memory->chunk].references;
  *handle = memory->chunk;
  return DriverResult::kSuccess;
}

DriverResult cuMemGetAllocationPropertiesFromHandle(MemAllocationProperties* properties,
                                                    uint64_t handle) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  const auto found = state.chunks.find(handle);
  if (found == state.chunks.end()) return DriverResult::kInvalidValue;
  *properties = {
      .type = AllocationType::kPinned,
      .handle_types = static_cast<HandleType>(found->second.handle_types),
      .location = {.type = LocationType::kDevice, .id = state.OrdinalOf(found->second.device)}};
  return DriverResult::kSuccess;
}

DriverResult cuMemExportToShareableHandle(void* shareable, uint64_t handle, HandleType type,
                                          uint64_t flags) {
  FAKE_CUDA_CALL(kInit);
  const auto found = TheState().chunks.find(handle);
  if (found == TheState().chunks.end() || flags != 0) return DriverResult::kInvalidValue;
  const FakeChunk& chunk = found->second;
  if ((chunk.handle_types & static_cast<int>(type)) == 0) return DriverResult::kInvalidValue;
  if (type == HandleType::kDescriptor) {
    const int fd = ::fcntl(chunk.fd.get(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return DriverResult::kOperatingSystem;
    *static_cast<int*>(shareable) = fd;
    return DriverResult::kSuccess;
  }
  const WireHandle wire{.magic = kFabricMagic,
                        .pid = ::getpid(),
                        .fd = chunk.fd.get(),
                        .device = chunk.device,
                        .size = chunk.size,
                        .inode = InodeOf(chunk.fd.get()),
                        .handle_types = chunk.handle_types};
  std::memcpy(shareable, &wire, sizeof(wire));
  return DriverResult::kSuccess;
}

DriverResult cuMemImportFromShareableHandle(uint64_t* handle, void* shareable, HandleType type) {
  FAKE_CUDA_CALL(kInit);
  State& state = TheState();
  FakeChunk chunk{.references = 1, .imported = true};
  if (type == HandleType::kDescriptor) {
    const int fd = static_cast<int>(reinterpret_cast<uintptr_t>(shareable));
    int numbers[4] = {};
    if (!ReadName(fd, "chunk", numbers)) return DriverResult::kInvalidValue;
    chunk.fd = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    chunk.size = static_cast<uint64_t>(::lseek(fd, 0, SEEK_END));
    chunk.device = numbers[0];
    chunk.handle_types = numbers[1];
  } else {
    WireHandle wire;
    std::memcpy(&wire, shareable, sizeof(wire));
    if (!Fabric()) return DriverResult::kNotPermitted;
    if (type != HandleType::kFabric || wire.magic != kFabricMagic) {
      return DriverResult::kInvalidValue;
    }
    chunk.fd = OpenWire(wire);
    chunk.size = wire.size;
    chunk.device = wire.device;
    chunk.handle_types = wire.handle_types;
  }
  if (!chunk.fd.valid()) return DriverResult::kInvalidHandle;
  if (state.DeviceOfNumber(chunk.device) == nullptr) return DriverResult::kInvalidDevice;
  *handle = state.next_id++;
  state.chunks[*handle] = std::move(chunk);
  return DriverResult::kSuccess;
}

}  // namespace dws::cuda
