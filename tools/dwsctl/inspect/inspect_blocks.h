// Whether the blocks of a slice can be decoded, also when nobody knows what the slice's elements
// are.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "common/delta/blocks/block.h"
#include "common/model/layout.h"

namespace dws::dwsctl {

// Checks the blocks of one slice in their order. Without a layout a block is sound when it decodes
// with an element size that all blocks of the slice before it decoded with; a block of mode
// dense-ulp that may be the slice's last is not checked, its number of elements is not known.
// Not thread-safe.
class BlockCheck {
 public:
  // `slice` may be null: no layout. `has_class_table`: its class-split blocks have one.
  BlockCheck(const RankLayout::SliceEntry* slice, bool has_class_table)
      : slice_(slice), has_class_table_(has_class_table) {}

  // Why `block`, number `number` of the slice, cannot be decoded; nullopt when it can.
  // `last_known`: no block of the slice that the object holds comes after it.
  std::optional<std::string> Check(const EncodedBlockView& block, uint32_t number, bool last_known);

 private:
  std::optional<std::string> Decode(DType dtype, uint32_t elements, const EncodedBlockView& block);
  std::optional<std::string> CheckAnySize(const EncodedBlockView& block, bool last_known);

  const RankLayout::SliceEntry* const slice_;
  const bool has_class_table_;
  std::array<bool, 4> possible_ = {true, true, true, true};  // 1, 2, 4, 8 bytes an element
  DecodedBlock decoded_;
};

// "k 3, exceptions" for mode split-rice, "width 2, escapes of 3 bits" for dense-ulp, "".
std::string FormatParameters(const EncodedBlockView& block);

}  // namespace dws::dwsctl
