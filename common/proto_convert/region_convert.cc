#include "common/proto_convert/region_convert.h"

#include <utility>

#include "common/model/limits.h"

namespace dws {
namespace {

// Sizes of a CUipcMemHandle, a CUmemFabricHandle and a CUmemPoolPtrExportData.
constexpr size_t kDriverHandleBytes = 64;
constexpr size_t kUuidBytesMax = 64;

Result<CudaChunkHandle> ChunkFromProto(const v1::CudaChunk& message) {
  CudaChunkHandle chunk{.size_bytes = message.size_bytes()};
  switch (message.handle_case()) {
    case v1::CudaChunk::kIpc:
      chunk.kind = CudaChunkHandle::Kind::kLegacyIpc;
      chunk.bytes = message.ipc();
      break;
    case v1::CudaChunk::kPosixDescriptor:
      chunk.kind = CudaChunkHandle::Kind::kDescriptor;
      return chunk;
    case v1::CudaChunk::kFabric:
      chunk.kind = CudaChunkHandle::Kind::kFabric;
      chunk.bytes = message.fabric();
      break;
    case v1::CudaChunk::kPool:
      chunk.kind = CudaChunkHandle::Kind::kPoolPointer;
      chunk.bytes = message.pool().pointer();
      chunk.opens_pool = message.pool().opens_pool();
      break;
    case v1::CudaChunk::HANDLE_NOT_SET:
      return InvalidArgumentError(
          "no handle is given, expected ipc, posix_descriptor, fabric or pool");
  }
  if (chunk.bytes.size() != kDriverHandleBytes) {
    return InvalidArgumentError("a handle of {} bytes, expected {}", chunk.bytes.size(),
                                kDriverHandleBytes);
  }
  return chunk;
}

Result<CudaRegionHandle> CudaFromProto(const v1::CudaMemory& message, uint64_t size_bytes) {
  if (message.device_uuid().empty() || message.device_uuid().size() > kUuidBytesMax) {
    return InvalidArgumentError("a device UUID of {} bytes, expected 1 to {}",
                                message.device_uuid().size(), kUuidBytesMax);
  }
  CudaRegionHandle cuda{.device_uuid = message.device_uuid(), .chunks = {}};
  uint64_t left = size_bytes;
  for (int c = 0; c < message.chunks_size(); ++c) {
    Result<CudaChunkHandle> chunk = ChunkFromProto(message.chunks(c));
    if (!chunk.ok()) return Annotate(chunk.status(), fmt::format("chunk {}", c));
    if (chunk->size_bytes == 0 || chunk->size_bytes > left) {
      return InvalidArgumentError("chunk {} has {} bytes where {} of the region are left", c,
                                  chunk->size_bytes, left);
    }
    left -= chunk->size_bytes;
    cuda.chunks.push_back(*std::move(chunk));
  }
  if (left != 0) {
    return InvalidArgumentError("chunks of {} bytes in a region of {}", size_bytes - left,
                                size_bytes);
  }
  return cuda;
}

Result<RegionHandle> RegionFromProto(const v1::Region& message) {
  if (message.size_bytes() == 0 || message.size_bytes() > limits::kRegionBytesMax) {
    return InvalidArgumentError("{} bytes, expected 1 to {}", message.size_bytes(),
                                limits::kRegionBytesMax);
  }
  RegionHandle region{.size_bytes = message.size_bytes()};
  if (message.has_cuda()) {
    DWS_ASSIGN_OR_RETURN(region.cuda, CudaFromProto(message.cuda(), message.size_bytes()));
  }
  return region;
}

}  // namespace

Result<std::vector<RegionHandle>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::Region>& regions) {
  if (regions.empty() || static_cast<size_t>(regions.size()) > limits::kRegionsMax) {
    return InvalidArgumentError("{} memory regions, expected 1 to {}", regions.size(),
                                limits::kRegionsMax);
  }
  size_t chunks = 0;
  for (const v1::Region& region : regions)
    chunks += static_cast<size_t>(region.cuda().chunks_size());
  if (chunks > limits::kCudaChunksMax) {
    return InvalidArgumentError("{} chunks of device memory, at most {} are supported", chunks,
                                limits::kCudaChunksMax);
  }
  std::vector<RegionHandle> handles;
  handles.reserve(static_cast<size_t>(regions.size()));
  for (int r = 0; r < regions.size(); ++r) {
    Result<RegionHandle> handle = RegionFromProto(regions[r]);
    if (!handle.ok()) return Annotate(handle.status(), fmt::format("memory region {}", r));
    handles.push_back(*std::move(handle));
  }
  return handles;
}

v1::Region ToProto(const RegionHandle& region) {
  v1::Region message;
  message.set_size_bytes(region.size_bytes);
  if (!region.cuda.has_value()) return message;
  v1::CudaMemory& cuda = *message.mutable_cuda();
  cuda.set_device_uuid(region.cuda->device_uuid);
  for (const CudaChunkHandle& chunk : region.cuda->chunks) {
    v1::CudaChunk& to = *cuda.add_chunks();
    to.set_size_bytes(chunk.size_bytes);
    switch (chunk.kind) {
      case CudaChunkHandle::Kind::kLegacyIpc:
        to.set_ipc(chunk.bytes);
        break;
      case CudaChunkHandle::Kind::kDescriptor:
        to.set_posix_descriptor(true);
        break;
      case CudaChunkHandle::Kind::kFabric:
        to.set_fabric(chunk.bytes);
        break;
      case CudaChunkHandle::Kind::kPoolPointer:
        to.mutable_pool()->set_pointer(chunk.bytes);
        to.mutable_pool()->set_opens_pool(chunk.opens_pool);
        break;
    }
  }
  return message;
}

}  // namespace dws
