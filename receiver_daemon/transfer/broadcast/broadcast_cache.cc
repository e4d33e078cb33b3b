#include "receiver_daemon/transfer/broadcast/broadcast_cache.h"

#include <algorithm>
#include <utility>

#include "common/model/limits.h"

namespace dws {

std::deque<BroadcastCache::Entry>::iterator BroadcastCache::Find(const BroadcastKey& key) {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const Entry& entry) { return entry.key == key; });
}

// The entry is made when a broadcast is announced, before its bytes arrive: a fetch that begins
// meanwhile waits for it instead of going to the sender.
void BroadcastCache::Expect(const BroadcastKey& key, TimePoint until) {
  MutexLock lock(mutex_);
  if (const auto found = Find(key); found != entries_.end()) entries_.erase(found);
  entries_.push_back({.key = key, .until = until, .object = std::nullopt});
  if (entries_.size() > limits::kBroadcastsKeptMax) entries_.pop_front();
  changed_.NotifyAll();
}

void BroadcastCache::Put(const BroadcastKey& key, std::vector<std::byte> object) {
  MutexLock lock(mutex_);
  const auto found = Find(key);
  if (found == entries_.end()) return;
  found->object = std::move(object);
  changed_.NotifyAll();
}

void BroadcastCache::Fail(const BroadcastKey& key) {
  MutexLock lock(mutex_);
  const auto found = Find(key);
  if (found == entries_.end() || found->object.has_value()) return;
  entries_.erase(found);
  changed_.NotifyAll();
}

void BroadcastCache::FailAll(bool all) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [all](const Entry& entry) { return all || !entry.object.has_value(); });
  changed_.NotifyAll();
}

void BroadcastCache::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  entries_.clear();
  changed_.NotifyAll();
}

std::optional<std::vector<std::byte>> BroadcastCache::Take(const BroadcastKey& key,
                                                           const std::function<bool()>& wanted) {
  while (!wanted || wanted()) {
    MutexLock lock(mutex_);
    const auto found = Find(key);
    if (closed_ || found == entries_.end()) return std::nullopt;
    if (found->object.has_value()) {
      std::optional<std::vector<std::byte>> object = std::move(found->object);
      entries_.erase(found);
      return object;
    }
    const Duration left = found->until - clock_.Now();
    if (left <= Duration::zero()) return std::nullopt;
    changed_.WaitFor(mutex_, std::min<Duration>(left, limits::kTick));
  }
  return std::nullopt;
}

}  // namespace dws
