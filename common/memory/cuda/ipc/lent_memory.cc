// A mapping takes the descriptors that it is given, so each gets duplicates.
#include "common/memory/cuda/ipc/lent_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

namespace dws::cuda {

std::string LentMemory::device_uuid() const {
  return handle_.cuda.has_value() ? handle_.cuda->device_uuid : "a GPU";
}

Status LentMemory::CheckTime() const {
  if (!time_.has_value() || time_->clock.Now() < time_->until) return OkStatus();
  return DeadlineExceededError(
      "the time for which {} lends its memory ended {:.1f} s ago: nothing read from it counts",
      device_uuid(), ToSeconds(time_->clock.Now() - time_->until));
}

bool LentMemory::mapped_on_own_device() const {
  const std::string uuid = device_uuid();
  MutexLock lock(mutex_);
  return std::ranges::any_of(mapped_,
                             [&](const auto& mapped) { return mapped.first->uuid() == uuid; });
}

Result<uint64_t> LentMemory::AddressOn(const CudaDevicePtr& device) {
  DWS_RETURN_IF_ERROR(CheckTime());
  MutexLock lock(mutex_);
  if (const auto found = mapped_.find(device); found != mapped_.end()) {
    return found->second.address();
  }
  std::vector<UniqueFd> descriptors;
  for (const UniqueFd& descriptor : descriptors_) {
    descriptors.emplace_back(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0));
    if (!descriptors.back().valid()) return ErrnoError(errno, "a descriptor of lent GPU memory");
  }
  DWS_ASSIGN_OR_RETURN(
      CudaRegion region,
      CudaRegion::Import(device, handle_, std::move(descriptors), nullptr, Home::kPeer));
  const uint64_t address = region.address();
  mapped_.emplace(device, std::move(region));
  return address;
}

}  // namespace dws::cuda
