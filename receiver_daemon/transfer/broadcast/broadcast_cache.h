// Delta objects that arrive by broadcast, until they are taken: those that have arrived and those
// that are on their way. An object that is not here is fetched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
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

  // The object is on its way; Take waits for it until `until`.
  void Expect(const BroadcastKey& key, TimePoint until);
  // The object has arrived; it is kept if it is still expected.
  void Put(const BroadcastKey& key, std::vector<std::byte> object);
  // The object will not arrive.
  void Fail(const BroadcastKey& key);
  // No expected object will arrive. Objects that have arrived are kept unless `all` is set.
  void FailAll(bool all);
  // From now on Take does not wait.
  void Close();

  // Moves the object out; waits while it is on its way, at most until its deadline. nullopt: it is
  // not available, or `wanted` (polled; without it always true) returns false.
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
