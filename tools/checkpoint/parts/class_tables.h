// Learns the class tables of a difference (FORMAT.md, "Mode 3") from a sample of its blocks.
#pragma once

#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/model/class_table.h"
#include "tools/checkpoint/parts/block_source.h"
#include "tools/checkpoint/parts/block_walk.h"

namespace dws::checkpoint {

using ClassTables = std::vector<std::optional<ClassTable>>;  // by rank slice

// nullopt for slices of integers, for those that are not ready, and for slices without a changed
// block in the sample. Errors: of source and progress.
Result<ClassTables> LearnClassTables(const Walk& walk, BlockSource& source);

}  // namespace dws::checkpoint
