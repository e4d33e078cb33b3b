// The name of the file in which `dwsctl apply --in-place` writes down what it is about to do
// (tools/checkpoint/in_place.h). While one is there, the checkpoint is neither version and not to
// be read: a change of it has not ended.
#pragma once

#include <string_view>

namespace dws {

// Of a folder: the name of a file in it (CHECKPOINT/.dws-apply.redo). Of a single file: what is
// added to its path (FILE.dws-apply.redo). A folder is half changed as well when a file in it is,
// so whoever opens one looks for names that end with this.
inline constexpr std::string_view kInPlaceRedoName = ".dws-apply.redo";

}  // namespace dws
