// A ledger byte by byte: what common/ledger says of it, in the order of the file.
#pragma once

#include "common/base/status.h"
#include "tools/dwsctl/base/byte_file.h"
#include "tools/dwsctl/inspect/inspect_item.h"

namespace dws::dwsctl {

// Tells `sink` the head, the last limits.records records with their fields, problems, and what the
// records add up to. After damage it reads on at the next sound record. Takes no lock: of a ledger
// in use the last record may be incomplete. Returns the number of problems. Memory: the file, at
// most limits::kLedgerBytesMax; of a larger one the beginning is read.
Result<uint64_t> InspectLedger(const ByteFile& file, const InspectLimits& limits,
                               const InspectSink& sink);

}  // namespace dws::dwsctl
