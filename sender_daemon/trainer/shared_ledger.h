// The sender's ledger, shared by registrations and the publish pipeline.
#pragma once

#include <memory>
#include <utility>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/ledger/version_ledger.h"

namespace dws {

// A ledger for two threads: registrations open streams, the pipeline records versions.
class SharedSenderLedger {
 public:
  explicit SharedSenderLedger(std::unique_ptr<SenderLedger> ledger) : ledger_(std::move(ledger)) {}
  Status Append(const SenderRecord& record) {
    MutexLock lock(mutex_);
    return ledger_->Append(record);
  }
  // OK also if the version is recorded: one that a restart has lost is published once more.
  Status Record(const VersionPublished& version) {
    MutexLock lock(mutex_);
    const SenderLedgerState& state = ledger_->state();
    const bool recorded =
        state.stream() == version.stream && state.last_version() == version.version;
    return recorded ? OkStatus() : ledger_->Append(version);
  }
  SenderLedgerState state() const {
    MutexLock lock(mutex_);
    return ledger_->state();
  }

 private:
  mutable Mutex mutex_;
  const std::unique_ptr<SenderLedger> ledger_ GUARDED_BY(mutex_);
};

}  // namespace dws
