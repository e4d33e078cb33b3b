// The streams of cuda_device.h; CudaDevice makes them.
#include <algorithm>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/memory/cuda/cuda_device.h"

namespace dws::cuda {
namespace {

// One multiprocessor with 2,048 threads runs so many blocks at a time: more would only wait.
constexpr uint32_t kBlocksPerMultiprocessor = 2048 / kBlockThreads;

}  // namespace

CudaStream::CudaStream(CudaStream&& other) noexcept
    : device_(std::move(other.device_)), stream_(std::exchange(other.stream_, nullptr)) {}

CudaStream& CudaStream::operator=(CudaStream&& other) noexcept {
  CudaStream taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(stream_, taken.stream_);
  return *this;
}

CudaStream::~CudaStream() {
  if (device_ == nullptr || !device_->Enter().ok()) return;
  const DriverApi& api = device_->driver().api();
  if (stream_ != nullptr) (void)api.stream_destroy(stream_);
}

Status CudaStream::CopyToDevice(uint64_t target, ByteSpan source) const {
  DWS_CHECK(device_ != nullptr);
  if (source.empty()) return OkStatus();
  DWS_RETURN_IF_ERROR(device_->Enter());
  const CudaDriver& driver = device_->driver();
  return driver.Check(
      driver.api().copy_to_device_async(target, source.data(), source.size(), stream_),
      "cuMemcpyHtoDAsync");
}

Status CudaStream::CopyToHost(MutableByteSpan target, uint64_t source) const {
  DWS_CHECK(device_ != nullptr);
  if (target.empty()) return OkStatus();
  DWS_RETURN_IF_ERROR(device_->Enter());
  const CudaDriver& driver = device_->driver();
  return driver.Check(
      driver.api().copy_to_host_async(target.data(), source, target.size(), stream_),
      "cuMemcpyDtoHAsync");
}

Status CudaStream::CopyOnDevice(uint64_t target, uint64_t source, uint64_t size_bytes) const {
  DWS_CHECK(device_ != nullptr);
  if (size_bytes == 0) return OkStatus();
  DWS_RETURN_IF_ERROR(device_->Enter());
  const CudaDriver& driver = device_->driver();
  return driver.Check(driver.api().copy_on_device_async(target, source, size_bytes, stream_),
                      "cuMemcpyDtoDAsync");
}

Status CudaStream::Zero(uint64_t target, uint64_t size_bytes) const {
  DWS_CHECK(device_ != nullptr);
  if (size_bytes == 0) return OkStatus();
  DWS_RETURN_IF_ERROR(device_->Enter());
  const CudaDriver& driver = device_->driver();
  return driver.Check(driver.api().set_bytes_async(target, 0, size_bytes, stream_),
                      "cuMemsetD8Async");
}

Status CudaStream::LaunchKernel(Kernel kernel, const void* args, uint64_t items) const {
  DWS_CHECK(device_ != nullptr);
  if (items == 0) return OkStatus();
  DWS_RETURN_IF_ERROR(device_->Enter());
  const CudaDriver& driver = device_->driver();
  const auto number = static_cast<uint32_t>(kernel);
  const auto blocks = static_cast<unsigned>(
      std::min<uint64_t>(CeilDiv(items, kWarpsPerBlock),
                         uint64_t{device_->multiprocessors_} * kBlocksPerMultiprocessor));
  // The driver copies the struct before it returns. It does not write to it.
  void* parameters[] = {const_cast<void*>(args)};
  return Annotate(
      driver.Check(driver.api().launch_kernel(device_->kernels_[number], blocks, 1, 1,
                                              kBlockThreads, 1, 1, 0, stream_, parameters, nullptr),
                   "cuLaunchKernel"),
      kKernelNames[number]);
}

Status CudaStream::Synchronize() const {
  DWS_CHECK(device_ != nullptr);
  DWS_RETURN_IF_ERROR(device_->Enter());
  const CudaDriver& driver = device_->driver();
  return driver.Check(driver.api().stream_synchronize(stream_), "cuStreamSynchronize");
}

}  // namespace dws::cuda
