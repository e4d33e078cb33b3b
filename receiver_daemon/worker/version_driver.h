// The seam between the worker's loop and what picks an engine's versions and lets it run:
// solo_driver.h for an engine of its own, group_driver.h for a member of a commit group.
#pragma once

#include "common/base/status.h"
#include "common/model/stream_id.h"

namespace dws {

// Threads: the worker's.
class VersionDriver {
 public:
  virtual ~VersionDriver() = default;

  // One look at senders, engine and memory, and what follows from it. An error: again, a little
  // later.
  virtual Status Round() = 0;
  // After each round; `round` is its outcome.
  virtual void AfterRound(const Status& round) = 0;
  // Something is staged that a group's leader may still have committed: the receiver is not drained
  // yet.
  virtual bool in_flight() const = 0;
  // Others wait for something that the next Round does, also if the last one failed.
  virtual bool has_orders() const = 0;

  // Memory is about to be released: what is staged for it goes first.
  virtual void DropPrepared() = 0;
  // An operator had `stream` forgotten: before the ledger forgets it, and after.
  virtual void BeforeForget() = 0;
  virtual void AfterForget(const StreamId& stream) = 0;
};

}  // namespace dws
