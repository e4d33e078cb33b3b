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
  SenderLedgerState state() const {
    MutexLock lock(mutex_);
    return ledger_->state();
  }

 private:
  mutable Mutex mutex_;
  const std::unique_ptr<SenderLedger> ledger_ GUARDED_BY(mutex_);
};

}  // namespace dws
