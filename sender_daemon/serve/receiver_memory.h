// Remembers a sender's receivers across restarts: which were connected, so that a receiver that
// does not return after a restart is known to be missing. It is kept apart from the ledger: it
// decides nothing about versions, and errors of reading or writing are only logged.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/threads/executor.h"
#include "common/ledger/known_receivers.h"
#include "common/sync_state/announcer_state.h"

namespace dws {

// Lifecycle: the destructor waits for the current write. Threads: one at a time.
class ReceiverMemory {
 public:
  // `files` must outlive it. `unix_seconds` is the time of day; only people read it.
  ReceiverMemory(FileSystem& files, std::string state_folder,
                 std::function<uint64_t()> unix_seconds);

  // The receivers in the file; none if it is absent or damaged.
  std::vector<KnownReceiver> Load();

  // Notes which receivers are present. Returns the ids to forget: those that were absent for
  // limits::kReceiverForgottenAfter.
  std::vector<std::string> Look(const std::map<std::string, AnnouncerState::Receiver>& receivers,
                                TimePoint now);
  // Writes the file if Look has seen a change, at most once per
  // limits::kKnownReceiversSaveInterval. Writes on another thread, so a hanging disk does not block
  // the caller.
  void Save(TimePoint now);
  // Like Save, but returns after the write, however long it takes. Call it once, last.
  void SaveLast();

 private:
  std::vector<KnownReceiver> Known() const;
  void Write(const std::vector<KnownReceiver>& receivers);

  FileSystem& files_;
  const std::string state_folder_;
  const std::function<uint64_t()> unix_seconds_;
  std::map<std::string, KnownReceiver> known_;
  std::map<std::string, TimePoint> absent_since_;
  bool changed_ = false;
  std::optional<TimePoint> saved_at_;  // of the last attempt
  std::atomic<bool> writing_{false};
  std::atomic<bool> failed_{false};  // the last write
  std::string trouble_;              // last logged; used by the thread that writes
  Executor writer_{1, 1};
};

}  // namespace dws
