// The ledger of a daemon: a state that survives it. The seam between protocol and disk:
// file_version_ledger.h is the real one, tests/fakes/memory_version_ledger.h another.
#pragma once

#include "common/base/status.h"
#include "common/ledger/ledger_state.h"

namespace dws {

// Threads: one at a time; the owner serialises.
template <typename State>
class VersionLedger {
 public:
  virtual ~VersionLedger() = default;

  // All records that Append returned OK for, and those found at the start.
  virtual const State& state() const = 0;

  // Durable and in state() when OK. FAILED_PRECONDITION: State::Apply refuses it, nothing was
  // written. Any other error (disk full, I/O): not in state(), but a restart may find it; the
  // ledger stays usable, and a later Append mends the file first.
  virtual Status Append(const typename State::Record& record) = 0;
};

using SenderLedger = VersionLedger<SenderLedgerState>;
using ReceiverLedger = VersionLedger<ReceiverLedgerState>;

}  // namespace dws
