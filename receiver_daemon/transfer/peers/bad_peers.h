// Receivers that served this one badly: they are left out for a while.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/sync_state/peer_handouts.h"

namespace dws {

// Threads: safe from any.
class BadPeers {
 public:
  // `address` is left out until then; of the latest kPeersAvoidedMax.
  void Add(const std::string& address, TimePoint until) {
    MutexLock lock(mutex_);
    std::erase_if(bad_, [&](const Entry& entry) { return entry.address == address; });
    if (bad_.size() == kPeersAvoidedMax) bad_.pop_front();
    bad_.push_back({.address = address, .until = until});
  }
  std::vector<std::string> At(TimePoint now) {
    MutexLock lock(mutex_);
    std::erase_if(bad_, [&](const Entry& entry) { return entry.until <= now; });
    std::vector<std::string> addresses;
    for (const Entry& entry : bad_) addresses.push_back(entry.address);
    return addresses;
  }

 private:
  struct Entry {
    std::string address;
    TimePoint until;
  };
  Mutex mutex_;
  std::deque<Entry> bad_ GUARDED_BY(mutex_);
};

}  // namespace dws
