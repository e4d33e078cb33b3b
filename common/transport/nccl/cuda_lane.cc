#include "common/transport/nccl/cuda_lane.h"

#include <array>
#include <charconv>
#include <memory>
#include <utility>

#include "common/memory/cuda/cuda_driver.h"

namespace dws::nccl {
namespace {

using cuda::CudaDriver;
using cuda::CudaDriverPtr;
using cuda::DriverApi;
using cuda::DriverResult;

// The device's primary context, which is the one that NCCL works in.
class PrimaryContext {
 public:
  static Result<std::shared_ptr<const PrimaryContext>> Retain(CudaDriverPtr driver, int ordinal) {
    int device = 0;
    void* context = nullptr;
    DWS_RETURN_IF_ERROR(driver->Check(driver->api().device_get(&device, ordinal), "cuDeviceGet"));
    DWS_RETURN_IF_ERROR(driver->Check(driver->api().primary_context_retain(&context, device),
                                      "cuDevicePrimaryCtxRetain"));
    return std::shared_ptr<const PrimaryContext>(
        new PrimaryContext(std::move(driver), device, context));
  }
  ~PrimaryContext() { static_cast<void>(api().primary_context_release(device_)); }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const DriverApi& api() const { return driver_->api(); }
  Status Check(DriverResult result, const char* what) const { return driver_->Check(result, what); }
  Status Enter() const { return Check(api().context_set_current(context_), "cuCtxSetCurrent"); }

 private:
  PrimaryContext(CudaDriverPtr driver, int device, void* context)
      : driver_(std::move(driver)), device_(device), context_(context) {}

  const CudaDriverPtr driver_;
  const int device_;
  void* const context_;
};
using PrimaryContextPtr = std::shared_ptr<const PrimaryContext>;

class CudaLane final : public DeviceLane {
 public:
  static Result<std::unique_ptr<DeviceLane>> Make(PrimaryContextPtr context, uint64_t slot_bytes) {
    std::unique_ptr<CudaLane> lane(new CudaLane(std::move(context), slot_bytes));
    DWS_RETURN_IF_ERROR(lane->Allocate());
    return std::unique_ptr<DeviceLane>(std::move(lane));
  }
  ~CudaLane() override {
    if (!context_->Enter().ok()) return;
    const DriverApi& api = context_->api();
    for (const Slot& slot : slots_) {
      if (slot.device != 0) static_cast<void>(api.mem_free(slot.device));
      if (slot.host != nullptr) static_cast<void>(api.host_free(slot.host));
    }
    if (stream_ != nullptr) static_cast<void>(api.stream_destroy(stream_));
  }

  Status Enter() override { return context_->Enter(); }
  void* stream() override { return stream_; }
  uint64_t slot_bytes() const override { return slot_bytes_; }
  uint64_t device_address(size_t slot) const override { return slots_[slot].device; }
  MutableByteSpan host_bytes(size_t slot) const override {
    return {static_cast<std::byte*>(slots_[slot].host), slot_bytes_};
  }
  Status CopyIn(size_t slot, uint64_t size_bytes) override {
    return context_->Check(context_->api().copy_to_device_async(
                               slots_[slot].device, slots_[slot].host, size_bytes, stream_),
                           "cuMemcpyHtoDAsync");
  }
  Status CopyOut(size_t slot, uint64_t size_bytes) override {
    return context_->Check(context_->api().copy_to_host_async(
                               slots_[slot].host, slots_[slot].device, size_bytes, stream_),
                           "cuMemcpyDtoHAsync");
  }
  Result<bool> Finished() override {
    const DriverResult result = context_->api().stream_query(stream_);
    if (result == DriverResult::kNotReady) return false;
    DWS_RETURN_IF_ERROR(context_->Check(result, "cuStreamQuery"));
    return true;
  }

 private:
  struct Slot {
    uint64_t device = 0;
    void* host = nullptr;
  };

  CudaLane(PrimaryContextPtr context, uint64_t slot_bytes)
      : context_(std::move(context)), slot_bytes_(slot_bytes) {}

  Status Allocate() {
    DWS_RETURN_IF_ERROR(Enter());
    const DriverApi& api = context_->api();
    DWS_RETURN_IF_ERROR(context_->Check(api.stream_create(&stream_, cuda::kStreamNonBlocking, 0),
                                        "cuStreamCreateWithPriority"));
    for (Slot& slot : slots_) {
      DWS_RETURN_IF_ERROR(context_->Check(api.mem_alloc(&slot.device, slot_bytes_), "cuMemAlloc"));
      DWS_RETURN_IF_ERROR(context_->Check(
          api.host_alloc(&slot.host, slot_bytes_, cuda::kHostAllocPortable), "cuMemHostAlloc"));
    }
    return OkStatus();
  }

  const PrimaryContextPtr context_;
  const uint64_t slot_bytes_;
  void* stream_ = nullptr;
  std::array<Slot, kLaneSlots> slots_;
};

std::string Listed(const std::vector<std::string>& uuids) {
  std::string text;
  for (const std::string& uuid : uuids) text += (text.empty() ? "" : ", ") + uuid;
  return text;
}

}  // namespace

Result<int> ChooseDevice(std::string_view gpu, const std::vector<std::string>& uuids) {
  if (gpu.empty()) {
    if (uuids.size() == 1) return 0;
    return InvalidArgumentError("there are {} devices ({}): name the one to use with --gpu",
                                uuids.size(), Listed(uuids));
  }
  size_t number = 0;
  const auto [end, error] = std::from_chars(gpu.data(), gpu.data() + gpu.size(), number);
  const bool is_number = error == std::errc() && end == gpu.data() + gpu.size();
  for (size_t i = 0; i < uuids.size(); ++i) {
    if (is_number ? number == i : gpu == uuids[i]) return static_cast<int>(i);
  }
  return NotFoundError("expected the device '{}', this process sees {} (CUDA_VISIBLE_DEVICES)", gpu,
                       Listed(uuids));
}

Result<CudaLanes> OpenCudaLanes(std::string_view gpu) {
  DWS_ASSIGN_OR_RETURN(const CudaDriverPtr driver, CudaDriver::Load());
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> uuids, driver->DeviceUuids());
  DWS_ASSIGN_OR_RETURN(const int ordinal, ChooseDevice(gpu, uuids));
  DWS_ASSIGN_OR_RETURN(PrimaryContextPtr context, PrimaryContext::Retain(driver, ordinal));
  return CudaLanes{.source = [context](uint64_t slot_bytes) -> Result<std::unique_ptr<DeviceLane>> {
                     return CudaLane::Make(context, slot_bytes);
                   },
                   .uuid = uuids[static_cast<size_t>(ordinal)]};
}

}  // namespace dws::nccl
