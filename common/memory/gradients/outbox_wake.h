// How the two sides of an outbox wake each other: one end of a pair of stream sockets each
// (OUTBOX.md says why).
#pragma once

#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws {

// Owns an end. Threads: safe from any, but only one waits.
class OutboxWake {
 public:
  // `end` came from another process: whatever it is, no call blocks beyond its timeout.
  explicit OutboxWake(UniqueFd end) : end_(std::move(end)) {}

  // Both ends. RESOURCE_EXHAUSTED: no descriptors are left.
  static Result<std::pair<UniqueFd, UniqueFd>> MakePair();

  // Never waits. It is no error if the other side is gone.
  void Notify() const;
  // Waits until the other side notifies. False: `timeout` passed. UNAVAILABLE: the other side has
  // closed its end, or it is no socket.
  Result<bool> Wait(Duration timeout) const;

 private:
  UniqueFd end_;
};

}  // namespace dws
