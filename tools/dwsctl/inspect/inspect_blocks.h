// Checks whether the blocks of a slice can be decoded, even if the slice's element type is not
// known.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "common/delta/blocks/block.h"
#include "common/model/layout.h"

namespace dws::dwsctl {

// Checks the blocks of one slice in their order. Without a layout a block is sound if it decodes
// with an element size with which all earlier blocks of the slice have decoded. A block of mode
// dense-ulp that may be the slice's last is not checked, because its number of elements is not
// known. Not thread-safe.
class BlockCheck {
 public:
  // `slice` may be null: no layout. `has_class_table`: the object has a class table for the slice.
  BlockCheck(const RankLayout::SliceEntry* slice, bool has_class_table)
      : slice_(slice), has_class_table_(has_class_table) {}

  // Returns why `block`, number `number` of the slice, cannot be decoded; nullopt: it can be.
  // `last_known`: it is the last block of the slice in the object.
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
