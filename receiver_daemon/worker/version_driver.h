// The seam between the worker's loop and the class that picks an engine's versions and lets the
// engine run: solo_driver.h for an engine of its own, group_driver.h for a member of a commit
// group.
#pragma once

#include "common/base/status.h"
#include "common/model/stream_id.h"

namespace dws {

// Threads: the worker's.
class VersionDriver {
 public:
  virtual ~VersionDriver() = default;

  // Looks once at senders, engine and memory, and acts on it. An error means: call it again a
  // little later.
  virtual Status Round() = 0;
  // After each round; `round` is its outcome.
  virtual void AfterRound(const Status& round) = 0;
  // Something is staged that a group's leader may still have committed: the receiver is not drained
  // yet.
  virtual bool in_flight() const = 0;
  // Others wait for something that the next Round does, also if the last one failed.
  virtual bool has_orders() const = 0;

  // Memory is about to be released: drops the version that is staged for it first.
  virtual void DropPrepared() = 0;
  // An operator had `stream` forgotten: before the ledger forgets it, and after.
  virtual void BeforeForget() = 0;
  virtual void AfterForget(const StreamId& stream) = 0;
};

}  // namespace dws
