// The name of the redo record of `dwsctl apply --in-place` (tools/checkpoint/in_place.h). While
// such a file exists, a change of the checkpoint has not finished: the checkpoint is of neither
// version and must not be read.
#pragma once

#include <string_view>

namespace dws {

// For a folder: the name of a file in it (CHECKPOINT/.dws-apply.redo). For a single file: a suffix
// of its path (FILE.dws-apply.redo). A folder is also half changed when one of its files is, so a
// reader of a folder must look for all names that end with this.
inline constexpr std::string_view kInPlaceRedoName = ".dws-apply.redo";

}  // namespace dws
