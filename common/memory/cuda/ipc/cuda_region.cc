#include "common/memory/cuda/ipc/cuda_region.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/memory/cuda/ipc/cuda_mapping.h"

namespace dws::cuda {
namespace {

using Kind = CudaChunkHandle::Kind;

// The handle comes from another process, so it is checked before the driver sees it.
Status CheckHandle(const CudaDevice& device, const RegionHandle& handle, size_t descriptor_count,
                   Home home) {
  if (!handle.cuda.has_value() || handle.cuda->chunks.empty()) {
    return InvalidArgumentError("expected a region of device memory, found one without its chunks");
  }
  if (home == Home::kHere && handle.cuda->device_uuid != device.uuid()) {
    return InvalidArgumentError("expected memory of device {}, found a handle of device {}",
                                device.uuid(), handle.cuda->device_uuid);
  }
  uint64_t left = handle.size_bytes;
  for (const CudaChunkHandle& chunk : handle.cuda->chunks) {
    if (chunk.size_bytes == 0 || chunk.size_bytes > left) {
      return InvalidArgumentError(
          "expected chunks of {} bytes together, found one of {} where {} are left",
          handle.size_bytes, chunk.size_bytes, left);
    }
    left -= chunk.size_bytes;
    if (chunk.kind != Kind::kDescriptor && chunk.bytes.size() != kDriverHandleBytes) {
      return InvalidArgumentError("expected a handle of {} bytes, found {}", kDriverHandleBytes,
                                  chunk.bytes.size());
    }
  }
  if (left != 0) {
    return InvalidArgumentError("expected chunks of {} bytes together, found {}", handle.size_bytes,
                                handle.size_bytes - left);
  }
  if (descriptor_count != handle.descriptor_count()) {
    return InvalidArgumentError("expected {} descriptors with a region of device memory, found {}",
                                handle.descriptor_count(), descriptor_count);
  }
  return OkStatus();
}

bool IsVmm(const CudaChunkHandle& chunk) {
  return chunk.kind == Kind::kDescriptor || chunk.kind == Kind::kFabric;
}

}  // namespace

Status ImportError(const CudaDevice& device, DriverResult result, const char* what,
                   std::string_view remedy) {
  const Status status = device.driver().Check(result, what);
  if (status.ok()) return status;
  const bool unsupported =
      result == DriverResult::kNotSupported || result == DriverResult::kNotPermitted;
  return MakeStatus(unsupported ? absl::StatusCode::kUnimplemented : status.code(),
                    fmt::format("cannot import memory of device {}: {}; {}", device.uuid(),
                                Message(status), remedy));
}

Result<CudaRegion> CudaRegion::Import(CudaDevicePtr device, const RegionHandle& handle,
                                      std::vector<UniqueFd> descriptors, CudaPoolPtr* pool,
                                      Home home) {
  DWS_CHECK(device != nullptr);
  DWS_RETURN_IF_ERROR(CheckHandle(*device, handle, descriptors.size(), home));
  DWS_RETURN_IF_ERROR(device->Enter());
  auto mapping = std::make_unique<Mapping>();
  mapping->device = std::move(device);
  mapping->home = home;
  mapping->size_bytes = handle.size_bytes;
  const std::vector<CudaChunkHandle>& chunks = handle.cuda->chunks;
  if (std::all_of(chunks.begin(), chunks.end(), IsVmm)) {
    DWS_RETURN_IF_ERROR(Mapping::ImportChunks(chunks, descriptors, *mapping));
  } else if (chunks.size() > 1) {
    return UnimplementedError(
        "found {} chunks, not all of them of virtual memory management, in one region of device "
        "memory: only such chunks can be mapped side by side; hand each other allocation over as a "
        "region of its own",
        chunks.size());
  } else if (chunks[0].kind == Kind::kLegacyIpc) {
    DWS_RETURN_IF_ERROR(Mapping::ImportLegacy(chunks[0], *mapping));
  } else {
    CudaPoolPtr own;
    DWS_RETURN_IF_ERROR(Mapping::ImportPooled(
        chunks[0], descriptors.empty() ? UniqueFd() : std::move(descriptors[0]),
        pool != nullptr ? *pool : own, *mapping));
  }
  return CudaRegion(std::move(mapping));
}

CudaRegion::CudaRegion(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
CudaRegion::CudaRegion() = default;
CudaRegion::CudaRegion(CudaRegion&& other) noexcept = default;
CudaRegion& CudaRegion::operator=(CudaRegion&& other) noexcept = default;
CudaRegion::~CudaRegion() = default;

uint64_t CudaRegion::size_bytes() const { return mapping_ == nullptr ? 0 : mapping_->size_bytes; }
uint64_t CudaRegion::address() const { return mapping_ == nullptr ? 0 : mapping_->address; }
CudaDevicePtr CudaRegion::device() const {
  return mapping_ == nullptr ? nullptr : mapping_->device;
}

}  // namespace dws::cuda
