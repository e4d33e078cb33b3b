// The ledgers of the daemons on disk.
#pragma once

#include <memory>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/ledger/version_ledger.h"

namespace dws {

// Opens <state_folder>/sender.ledger or receiver.ledger, or starts an empty one. Fails as
// FileLedger::Open; UNAVAILABLE says that another daemon uses the folder. Compacts by itself once
// the file passes limits::kLedgerCompactBytes. `file_system` outlives the ledger.
Result<std::unique_ptr<SenderLedger>> OpenSenderLedger(FileSystem& file_system,
                                                       const std::string& state_folder);
Result<std::unique_ptr<ReceiverLedger>> OpenReceiverLedger(FileSystem& file_system,
                                                           const std::string& state_folder);

}  // namespace dws
