// A delta object byte by byte: what common/delta says of it, in the order of the file.
#pragma once

#include "common/base/status.h"
#include "common/model/layout.h"
#include "tools/dwsctl/base/byte_file.h"
#include "tools/dwsctl/inspect/inspect_item.h"

namespace dws::dwsctl {

// Tells `sink` sections, fields, blocks and problems, and a summary at the end. Reads on after
// damage as long as it is known where things are. Every checksum is compared and every block
// decoded; what needs the layout is checked only with `layout` (may be null), digests never: they
// need the weights. Memory: the manifest and one frame. Returns the number of problems; an error of
// reading the file otherwise.
Result<uint64_t> InspectObject(const ByteFile& file, const RankLayout* layout,
                               const InspectLimits& limits, const InspectSink& sink);

}  // namespace dws::dwsctl
