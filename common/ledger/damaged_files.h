// Damaged ledgers that were set aside: PATH.damaged-1, PATH.damaged-2, ... beside the ledger; and
// folders that were in the place of a ledger or its fence. Nothing removes them but an operator.
#pragma once

#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"

namespace dws {

// Renames the file or folder to the first such name that is free, durably; the name. The caller has
// the ledger's lock. RESOURCE_EXHAUSTED: limits::kDamagedLedgersMax of them lie there. Else of the
// file system, as of a folder on which something is mounted, and what to do.
Result<std::string> SetDamagedAside(FileSystem& file_system, const std::string& path);

}  // namespace dws
