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
  // OK: the version is new, or recorded with these weights.
  Status CheckRecorded(WeightVersion version, const Digest& state_token) const {
    const SenderLedgerState ledger = state();
    const bool recorded = ledger.last_version() == version;
    const auto& known = ledger.published();
    if (!recorded || (!known.empty() && known.back().state_token == state_token)) {
      return OkStatus();
    }
    return FailedPreconditionError(
        "version {} is recorded with other weights than these: register again, and publish the "
        "recorded ones, or version {}",
        version.value(), version.value() + 1);
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
