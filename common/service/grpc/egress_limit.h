// Limits how fast a daemon sends to others, over all transfers together: a trainer or an engine
// needs the network too. Each transfer asks for its next piece, so they take turns.
#pragma once

#include <cstdint>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Threads: safe from any.
class EgressLimit {
 public:
  // 0: no limit.
  EgressLimit(uint64_t bytes_per_second, const Clock& clock)
      : bytes_per_second_(bytes_per_second), clock_(clock) {}

  // Reserves the sending of `bytes`; returns how long to wait before.
  Duration Reserve(uint64_t bytes);

 private:
  const uint64_t bytes_per_second_;
  const Clock& clock_;
  Mutex mutex_;
  TimePoint free_at_ GUARDED_BY(mutex_);  // when all that is reserved has been sent
};

}  // namespace dws
