// Every capture brings all weights of a GPU, so each copy is changed, and settled, by each, unless
// it is distrusted.
#include "sender_daemon/capture/gpu_copies.h"

#include <utility>

#include "common/base/check.h"

namespace dws {

GpuCopies::Id GpuCopies::Add(Copy copy) {
  DWS_CHECK(copy.device != nullptr && copy.memory != nullptr);
  MutexLock lock(mutex_);
  copy.id = ++last_;
  entries_.emplace(last_, Entry{.copy = std::move(copy), .version = std::nullopt});
  return last_;
}

void GpuCopies::Remove(Id id) {
  Entry removed;  // its memory is freed outside the lock
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  DWS_CHECK(found != entries_.end());
  removed = std::move(found->second);
  entries_.erase(found);
}

void GpuCopies::Change(Id id) {
  MutexLock lock(mutex_);
  Entry& entry = entries_.at(id);
  entry.version.reset();
  entry.changing = true;
}

void GpuCopies::Distrust(Id id) {
  MutexLock lock(mutex_);
  Entry& entry = entries_.at(id);
  entry.version.reset();
  entry.changing = false;
}

void GpuCopies::Settle(WeightVersion version) {
  MutexLock lock(mutex_);
  for (auto& [id, entry] : entries_) {
    if (std::exchange(entry.changing, false)) entry.version = version;
  }
}

Result<std::vector<GpuCopies::Copy>> GpuCopies::At(WeightVersion version) const {
  MutexLock lock(mutex_);
  if (entries_.empty()) {
    return FailedPreconditionError("this sender has no copy of its snapshot in GPU memory");
  }
  std::vector<Copy> found;
  for (const auto& [id, entry] : entries_) {
    if (!entry.version.has_value()) {
      return AbortedError("the sender's copies on GPUs are being changed: not all have version {}",
                          version.value());
    }
    if (entry.version != version) {
      return AbortedError("the sender's copies on GPUs are of version {}, not {}",
                          entry.version->value(), version.value());
    }
    found.push_back(entry.copy);
  }
  return found;
}

bool GpuCopies::empty() const {
  MutexLock lock(mutex_);
  return entries_.empty();
}

}  // namespace dws
