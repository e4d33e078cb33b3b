// A DeviceLane whose device is this process's memory: used with this folder's libnccl.so.2
// where there is no CUDA driver, not even the fake one.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "common/transport/nccl/device_lane.h"

namespace dws::nccl {

class HostLane final : public DeviceLane {
 public:
  explicit HostLane(uint64_t slot_bytes) {
    for (auto& slot : host_) slot.resize(slot_bytes);
    for (auto& slot : device_) slot.resize(slot_bytes);
  }
  static DeviceLaneSource Source() {
    return [](uint64_t slot_bytes) -> Result<std::unique_ptr<DeviceLane>> {
      return std::unique_ptr<DeviceLane>(std::make_unique<HostLane>(slot_bytes));
    };
  }

  Status Enter() override { return OkStatus(); }
  void* stream() override { return nullptr; }
  uint64_t slot_bytes() const override { return host_[0].size(); }
  uint64_t device_address(size_t slot) const override {
    return reinterpret_cast<uint64_t>(device_[slot].data());
  }
  MutableByteSpan host_bytes(size_t slot) const override { return host_[slot]; }
  Status CopyIn(size_t slot, uint64_t size_bytes) override {
    std::memcpy(device_[slot].data(), host_[slot].data(), size_bytes);
    return OkStatus();
  }
  Status CopyOut(size_t slot, uint64_t size_bytes) override {
    std::memcpy(host_[slot].data(), device_[slot].data(), size_bytes);
    return OkStatus();
  }
  Result<bool> Finished() override { return true; }

 private:
  mutable std::array<std::vector<std::byte>, kLaneSlots> host_;
  std::array<std::vector<std::byte>, kLaneSlots> device_;
};

}  // namespace dws::nccl
