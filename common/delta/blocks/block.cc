#include "common/delta/blocks/block.h"

namespace dws {

// The names are those of FORMAT.md; metrics and dwsctl use them as labels.
std::string_view ToString(BlockMode mode) {
  switch (mode) {
    case BlockMode::kEmpty:
      return "empty";
    case BlockMode::kRaw:
      return "raw";
    case BlockMode::kSplitRice:
      return "split-rice";
    case BlockMode::kClassSplit:
      return "class-split";
    case BlockMode::kDenseUlp:
      return "dense-ulp";
    case BlockMode::kDenseRaw:
      return "dense-raw";
    case BlockMode::kDenseZstd:
      return "dense-zstd";
  }
  return "unknown";
}

}  // namespace dws
