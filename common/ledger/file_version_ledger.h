// The ledgers of the daemons on disk.
#pragma once

#include <memory>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/ledger/version_ledger.h"

namespace dws {

struct LedgerOptions {
  // A damaged ledger is set aside, and an empty one that keeps the fence takes its place; so is a
  // folder in the place of the ledger, or of the fence beside a sound one.
  bool quarantine_damaged = false;
};

// Opens <state_folder>/sender.ledger or receiver.ledger, or starts one with the fence beside it, if
// there is one, and nothing else. Fails as FileLedger::Open; UNAVAILABLE says that another daemon
// uses the folder, DATA_LOSS also that the fence is needed and damaged or missing, or that a
// folder is in its place. Compacts by
// itself once the file passes limits::kLedgerCompactBytes. `file_system` outlives the ledger.
Result<std::unique_ptr<SenderLedger>> OpenSenderLedger(FileSystem& file_system,
                                                       const std::string& state_folder,
                                                       const LedgerOptions& options = {});
Result<std::unique_ptr<ReceiverLedger>> OpenReceiverLedger(FileSystem& file_system,
                                                           const std::string& state_folder,
                                                           const LedgerOptions& options = {});

}  // namespace dws
