// Sets aside damaged ledgers, and folders in the place of a ledger or its fence, as PATH.damaged-1,
// PATH.damaged-2, ... Only an operator removes them.
#pragma once

#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"

namespace dws {

// Renames the file or folder durably to the first such name that is free, and returns the name. The
// caller holds the ledger's lock. RESOURCE_EXHAUSTED: limits::kDamagedLedgersMax exist already.
// Other errors come from the file system (for example a folder on which something is mounted); they
// say what to do.
Result<std::string> SetDamagedAside(FileSystem& file_system, const std::string& path);

}  // namespace dws
