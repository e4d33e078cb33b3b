// What a sender remembers of its receivers beyond its own life: who was connected, so that after a
// restart one that does not come back is known to be missing. Not of the ledger: it decides nothing
// about versions, and what cannot be read or written is said in the log and gone on without.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/executor.h"
#include "common/base/file_system.h"
#include "common/ledger/known_receivers.h"
#include "common/sync_state/announcer_state.h"

namespace dws {

// Lifecycle: the destructor waits for a write under way. Threads: one at a time.
class ReceiverMemory {
 public:
  // `files` outlives it. `unix_seconds` is the time of day, which only people read.
  ReceiverMemory(FileSystem& files, std::string state_folder,
                 std::function<uint64_t()> unix_seconds);

  // Those that the file has; none where there is no file, or a damaged one.
  std::vector<KnownReceiver> Load();

  // Takes note of who is there. The ids that have been absent for limits::kReceiverForgottenAfter:
  // to be forgotten.
  std::vector<std::string> Look(const std::map<std::string, AnnouncerState::Receiver>& receivers,
                                TimePoint now);
  // Has the file written if what Look saw differs from what it has, at most every
  // limits::kKnownReceiversSaveInterval. On a thread of its own: a disk that hangs holds up nobody
  // who calls this.
  void Save(TimePoint now);
  // The same before it returns, whatever the disk takes. Once, as the last call.
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
  std::optional<TimePoint> saved_at_;  // tried last
  std::atomic<bool> writing_{false};
  std::atomic<bool> failed_{false};  // the last write
  std::string trouble_;              // logged last; of who writes
  Executor writer_{1, 1};
};

}  // namespace dws
