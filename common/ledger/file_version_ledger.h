// The ledgers of the daemons, on disk.
#pragma once

#include <memory>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/ledger/version_ledger.h"

namespace dws {

struct LedgerOptions {
  // Sets a damaged ledger aside and begins an empty one that keeps the fence. Also sets aside a
  // folder in the place of the ledger, or in the place of the fence beside a sound ledger.
  bool quarantine_damaged = false;
};

// Opens <state_folder>/sender.ledger or receiver.ledger, or begins one with only the fence beside
// it, if there is one. Fails as FileLedger::Open does. UNAVAILABLE: another daemon uses the folder.
// DATA_LOSS also: the fence is needed and is damaged or missing, or a folder is in its place. An
// Append compacts the file once it is larger than limits::kLedgerCompactBytes. `file_system` must
// outlive the ledger.
Result<std::unique_ptr<SenderLedger>> OpenSenderLedger(FileSystem& file_system,
                                                       const std::string& state_folder,
                                                       const LedgerOptions& options = {});
Result<std::unique_ptr<ReceiverLedger>> OpenReceiverLedger(FileSystem& file_system,
                                                           const std::string& state_folder,
                                                           const LedgerOptions& options = {});

}  // namespace dws
