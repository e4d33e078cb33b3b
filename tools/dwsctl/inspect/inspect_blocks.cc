#include "tools/dwsctl/inspect/inspect_blocks.h"

#include <fmt/format.h>

#include "common/base/status.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/blocks/values.h"
#include "common/delta/decoder.h"
#include "common/model/limits.h"

namespace dws::dwsctl {

std::optional<std::string> BlockCheck::Decode(DType dtype, uint32_t elements,
                                              const EncodedBlockView& block) {
  // Class-split needs the old weights, which an object does not contain: only the checksum of its
  // bytes is checked.
  if (block.mode == BlockMode::kClassSplit) {
    if (has_class_table_) return std::nullopt;
    return "class-split: its slice has no class table";
  }
  const Status status = DecodeBlock(dtype, elements, block, decoded_);
  if (status.ok()) return std::nullopt;
  return std::string(Message(status));
}

std::optional<std::string> BlockCheck::CheckAnySize(const EncodedBlockView& block,
                                                    bool last_known) {
  constexpr std::array<DType, 4> kSizes = {DType::kU8, DType::kU16, DType::kU32, DType::kU64};
  uint32_t elements = limits::kBlockElements;  // an upper bound is enough for sparse modes
  if (block.mode == BlockMode::kDenseRaw || block.mode == BlockMode::kDenseZstd) {
    elements = block.nnz;  // dense blocks contain all elements
    if (elements > limits::kBlockElements) {
      return fmt::format("{}: {} elements, a block has at most {}", ToString(block.mode), elements,
                         limits::kBlockElements);
    }
  }
  if (block.mode == BlockMode::kDenseUlp && last_known) return std::nullopt;
  std::string why;
  std::array<bool, 4> still = possible_;
  bool any = false;
  for (size_t i = 0; i < kSizes.size(); ++i) {
    if (!possible_[i]) continue;
    const std::optional<std::string> problem = Decode(kSizes[i], elements, block);
    still[i] = !problem.has_value();
    any = any || still[i];
    if (problem.has_value() && why.empty()) why = *problem;
  }
  if (!any) return why;  // later blocks are checked as if this one were absent
  possible_ = still;
  return std::nullopt;
}

std::optional<std::string> BlockCheck::Check(const EncodedBlockView& block, uint32_t number,
                                             bool last_known) {
  if (slice_ == nullptr) return CheckAnySize(block, last_known);
  if (number >= slice_->blocks) {
    return fmt::format("the slice has {} blocks", slice_->blocks);
  }
  return Decode(slice_->dtype, BlockElements(slice_->elements, number), block);
}

std::string FormatParameters(const EncodedBlockView& block) {
  constexpr uint32_t kElementBitsMax = 64;
  switch (block.mode) {
    case BlockMode::kSplitRice:
      return fmt::format("k {}{}{}", block.parameters & 0xF,
                         (block.parameters & 0x10) != 0 ? ", exceptions" : "",
                         block.parameters > 0x1F ? fmt::format(" ({:#x})", block.parameters) : "");
    case BlockMode::kClassSplit:
      return fmt::format(
          "counts of {} bits, shift {:+}{}",
          (block.parameters & LowBits(class_split::kCountWidthBits)) + 1,
          static_cast<int>(block.parameters >> class_split::kShiftShift) - class_split::kShiftBias,
          (block.parameters & class_split::kExceptionsFlag) != 0 ? ", exceptions" : "");
    case BlockMode::kDenseUlp: {
      const auto coding = UnpackValueCoding(block.parameters, kElementBitsMax);
      if (!coding.has_value()) return fmt::format("{:#x}", block.parameters);
      if (coding->fixed) return fmt::format("fixed, width {}", coding->width);
      return coding->escape_width == 0
                 ? fmt::format("width {}", coding->width)
                 : fmt::format("width {}, escapes of {} bits", coding->width, coding->escape_width);
    }
    default:
      return block.parameters == 0 ? "" : fmt::format("{:#x}", block.parameters);
  }
}

}  // namespace dws::dwsctl
