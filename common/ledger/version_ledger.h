// The ledger of a daemon: a state that survives the daemon. The interface between protocol and
// disk; implemented by file_version_ledger.h and, for tests, by
// tests/fakes/memory_version_ledger.h.
#pragma once

#include "common/base/status.h"
#include "common/ledger/ledger_state.h"

namespace dws {

// Threads: one at a time; the owner serialises calls.
template <typename State>
class VersionLedger {
 public:
  virtual ~VersionLedger() = default;

  // The state after the records found at the start and all for which Append returned OK.
  virtual const State& state() const = 0;

  // After OK, the record is durable and in state(). FAILED_PRECONDITION: State::Apply refuses it;
  // nothing was written. After any other error (disk full, I/O) it is not in state(), but a restart
  // may find it. The ledger stays usable: the next Append first writes the file again.
  virtual Status Append(const typename State::Record& record) = 0;
};

using SenderLedger = VersionLedger<SenderLedgerState>;
using ReceiverLedger = VersionLedger<ReceiverLedgerState>;

}  // namespace dws
