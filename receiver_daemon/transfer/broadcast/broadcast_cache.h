// Delta objects that come by broadcast, until somebody asks for them: those that came and those
// that are on their way. What it does not have is fetched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// Which delta of one sender's rank.
struct BroadcastKey {
  StreamId stream;
  WeightVersion base;
  WeightVersion version;

  friend bool operator==(const BroadcastKey&, const BroadcastKey&) = default;
};

// Holds limits::kBroadcastsKeptMax at most: the oldest goes. Threads: safe from any.
class BroadcastCache {
 public:
  explicit BroadcastCache(const Clock& clock) : clock_(clock) {}

  // It is on its way, and worth waiting for until then.
  void Expect(const BroadcastKey& key, TimePoint until);
  // It has come: kept if it is still expected.
  void Put(const BroadcastKey& key, std::vector<std::byte> object);
  // It will not come.
  void Fail(const BroadcastKey& key);
  // Nothing that is expected will come; what has come is kept unless `all`.
  void FailAll(bool all);
  // From now on nothing is waited for.
  void Close();

  // The object, taken out; waits while it is on its way, at most until it was to be here. nullopt:
  // it is not to be had, or `wanted` (asked again and again; none: always) says no.
  std::optional<std::vector<std::byte>> Take(const BroadcastKey& key,
                                             const std::function<bool()>& wanted);

 private:
  struct Entry {
    BroadcastKey key;
    TimePoint until;
    std::optional<std::vector<std::byte>> object;  // none: on its way
  };
  std::deque<Entry>::iterator Find(const BroadcastKey& key) REQUIRES(mutex_);

  const Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::deque<Entry> entries_ GUARDED_BY(mutex_);  // newest last
};

}  // namespace dws
