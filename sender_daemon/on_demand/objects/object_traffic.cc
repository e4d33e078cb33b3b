// Waits are numbered in the order in which they begin, so the first one in the map is the longest.
#include "sender_daemon/on_demand/objects/object_traffic.h"

#include <utility>

namespace dws {

uint64_t ObjectTraffic::BeginWait(Waiting waiting) {
  MutexLock lock(mutex_);
  const uint64_t wait = ++last_wait_;
  if (waits_.size() < limits::kObjectWaitersMax) waits_.emplace(wait, std::move(waiting));
  return wait;
}

void ObjectTraffic::EndWait(uint64_t wait) {
  MutexLock lock(mutex_);
  waits_.erase(wait);
}

std::optional<ObjectTraffic::Waiting> ObjectTraffic::longest() const {
  MutexLock lock(mutex_);
  if (waits_.empty()) return std::nullopt;
  return waits_.begin()->second;
}

}  // namespace dws
