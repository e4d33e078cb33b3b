// Describes memory that another process hands over. The description crosses the socket before
// anything is mapped.
//
// A region is host memory (a memfd, by its descriptor) or memory of one CUDA device: the whole
// allocation that contains tensors, as chunks side by side in the order of their addresses. A view
// has an offset in a region, so each allocation is imported once, however many tensors it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dws {

// One allocation of a CUDA device, or one physical chunk of a mapped range.
struct CudaChunkHandle {
  enum class Kind : uint8_t {
    kLegacyIpc,    // of a cudaMalloc: cuIpcGetMemHandle; `bytes` has 64
    kDescriptor,   // a VMM allocation: its POSIX descriptor is passed
    kFabric,       // a VMM allocation: CUmemFabricHandle; `bytes` has 64
    kPoolPointer,  // of an explicit pool: CUmemPoolPtrExportData; `bytes` has 64
  };
  Kind kind = Kind::kLegacyIpc;
  uint64_t size_bytes = 0;  // of the whole allocation
  std::string bytes;
  // Only kPoolPointer. True: the pool's descriptor is passed with this chunk. False: the pool is
  // that of the previous pool chunk.
  bool opens_pool = false;

  size_t descriptor_count() const {
    return kind == Kind::kDescriptor || (kind == Kind::kPoolPointer && opens_pool) ? 1 : 0;
  }
};

// A region of device memory, as the chunks that are mapped one after the other.
struct CudaRegionHandle {
  std::string device_uuid;  // "GPU-" and 32 hexadecimal digits in five groups, as nvidia-smi shows
  std::vector<CudaChunkHandle> chunks;
};

// A region of memory that one process hands to another.
struct RegionHandle {
  uint64_t size_bytes = 0;               // for CUDA the sum of its chunks
  std::optional<CudaRegionHandle> cuda;  // none: the region is a memfd, whose descriptor is passed

  // Returns how many descriptors are passed for it, in the order of its chunks.
  size_t descriptor_count() const {
    if (!cuda.has_value()) return 1;
    size_t count = 0;
    for (const CudaChunkHandle& chunk : cuda->chunks) count += chunk.descriptor_count();
    return count;
  }
};

inline size_t DescriptorCount(std::span<const RegionHandle> regions) {
  size_t count = 0;
  for (const RegionHandle& region : regions) count += region.descriptor_count();
  return count;
}

// Their sizes, in order.
inline std::vector<uint64_t> SizesOf(std::span<const RegionHandle> regions) {
  std::vector<uint64_t> sizes;
  for (const RegionHandle& region : regions) sizes.push_back(region.size_bytes);
  return sizes;
}

}  // namespace dws
