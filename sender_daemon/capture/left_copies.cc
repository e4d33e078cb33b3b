// A loan that ends frees its memory without a word to this list, so entries are weak.
#include "sender_daemon/capture/left_copies.h"

#include <algorithm>

namespace dws {

void LeftCopies::Leave(const cuda::CudaDevice& device, const Memory& memory) {
  MutexLock lock(mutex_);
  std::erase_if(left_, [](const Left& left) { return left.memory.expired(); });
  devices_.insert(device.uuid());
  left_.push_back({.device_uuid = device.uuid(), .memory = memory});
}

LeftCopies::Memory LeftCopies::TakeOver(const cuda::CudaDevice& device, uint64_t size_bytes) {
  std::vector<Memory> held;  // the last user of one may be gone by now: freed outside the lock
  MutexLock lock(mutex_);
  size_t best = left_.size();
  for (size_t i = 0; i < left_.size(); ++i) {
    held.push_back(left_[i].memory.lock());
    if (left_[i].device_uuid != device.uuid() || held[i] == nullptr) continue;
    if (held[i]->size_bytes() < size_bytes || held[i]->size_bytes() / 2 > size_bytes) continue;
    if (best == left_.size() || held[i]->size_bytes() < held[best]->size_bytes()) best = i;
  }
  if (best == left_.size()) return nullptr;
  left_.erase(left_.begin() + static_cast<ptrdiff_t>(best));
  return held[best];
}

bool LeftCopies::Any(const cuda::CudaDevice& device) const {
  MutexLock lock(mutex_);
  return devices_.contains(device.uuid());
}

size_t LeftCopies::Count(const cuda::CudaDevice& device) const {
  MutexLock lock(mutex_);
  return static_cast<size_t>(std::ranges::count_if(left_, [&device](const Left& left) {
    return left.device_uuid == device.uuid() && !left.memory.expired();
  }));
}

}  // namespace dws
