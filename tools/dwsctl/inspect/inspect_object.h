// Shows a delta object byte by byte, in the order of the file, as common/delta parses it.
#pragma once

#include "common/base/status.h"
#include "common/model/layout.h"
#include "tools/dwsctl/base/byte_file.h"
#include "tools/dwsctl/inspect/inspect_item.h"

namespace dws::dwsctl {

// Passes sections, fields, blocks and problems to `sink`, and a summary at the end. Continues after
// damage as long as the positions are known. Compares every checksum and decodes every block.
// Checks that need the layout are done only with `layout` (may be null). Digests are never checked,
// because they need the weights. Memory: the manifest and one frame. Returns the number of
// problems, or an error of reading the file.
Result<uint64_t> InspectObject(const ByteFile& file, const RankLayout* layout,
                               const InspectLimits& limits, const InspectSink& sink);

}  // namespace dws::dwsctl
