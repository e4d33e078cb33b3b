// Shows a ledger byte by byte, in the order of the file, as common/ledger parses it.
#pragma once

#include "common/base/status.h"
#include "tools/dwsctl/base/byte_file.h"
#include "tools/dwsctl/inspect/inspect_item.h"

namespace dws::dwsctl {

// Passes to `sink` the head, the last limits.records records with their fields, problems, and a
// summary of the records. After damage it continues at the next sound record. Takes no lock: in a
// ledger in use the last record may be incomplete. Returns the number of problems. Memory: the
// file, at most limits::kLedgerBytesMax; of a larger file only the beginning is read.
Result<uint64_t> InspectLedger(const ByteFile& file, const InspectLimits& limits,
                               const InspectSink& sink);

}  // namespace dws::dwsctl
