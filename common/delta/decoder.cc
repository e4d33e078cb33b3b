#include "common/delta/decoder.h"

#include "common/base/check.h"
#include "common/delta/blocks/absolute.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/blocks/dense_ulp.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/blocks/split_rice.h"
#include "common/model/limits.h"

namespace dws {
namespace {

Status DecodeEmpty(const EncodedBlockView& block) {
  if (block.nnz == 0 && block.parameters == 0 && block.payload.empty()) return OkStatus();
  return DataLossError("empty: {} changes, parameters {:x}, {} bytes, expected none", block.nnz,
                       block.parameters, block.payload.size());
}

Status DecodeClassSplit(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                        DecodedBlock& decoded, const BlockBase& base) {
  if (base.classes == nullptr) return DataLossError("class-split: its slice has no class table");
  if (base.before.size() != uint64_t{element_count} * ElementBytes(dtype)) {
    return FailedPreconditionError("class-split: needs the old block of {} elements, has {} bytes",
                                   element_count, base.before.size());
  }
  return ReadClassSplit(dtype, block, *base.classes, base.before, decoded);
}

}  // namespace

Status DecodeBlock(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                   DecodedBlock& decoded, const BlockBase& base) {
  DWS_CHECK(element_count <= limits::kBlockElements);
  decoded.kind = DecodedBlock::Kind::kNothing;
  decoded.positions.clear();
  decoded.values.clear();
  decoded.dense.clear();
  // The mode comes from the frame's bytes, so it may be a number that is not a BlockMode.
  if (block.mode == BlockMode::kEmpty) return DecodeEmpty(block);
  if (ToString(block.mode) != "unknown" && (block.nnz == 0 || block.nnz > element_count)) {
    return DataLossError("{}: {} changes in {} elements", ToString(block.mode), block.nnz,
                         element_count);
  }
  switch (block.mode) {
    case BlockMode::kEmpty:
      break;
    case BlockMode::kRaw:
      return ReadRaw(dtype, element_count, block, decoded);
    case BlockMode::kSplitRice:
      return ReadSplitRice(dtype, element_count, block, decoded);
    case BlockMode::kDenseUlp:
      return ReadDenseUlp(dtype, element_count, block, decoded);
    case BlockMode::kDenseRaw:
      return ReadDenseRaw(dtype, element_count, block, decoded);
    case BlockMode::kDenseZstd:
      return ReadDenseZstd(dtype, element_count, block, decoded);
    case BlockMode::kClassSplit:
      return DecodeClassSplit(dtype, element_count, block, decoded, base);
  }
  return UnimplementedError("block mode {} is not known to this build; it knows 0 to 6",
                            static_cast<uint32_t>(block.mode));
}

Status AdvanceBlock(DType dtype, const EncodedBlockView& block, const ClassTable* classes,
                    MutableByteSpan bytes, DecodedBlock& decoded) {
  const auto elements = static_cast<uint32_t>(bytes.size() / ElementBytes(dtype));
  DWS_RETURN_IF_ERROR(
      DecodeBlock(dtype, elements, block, decoded, {.classes = classes, .before = bytes}));
  ApplyBlock(dtype, decoded, bytes);
  return OkStatus();
}

Status RevertBlock(DType dtype, const EncodedBlockView& block, MutableByteSpan bytes,
                   DecodedBlock& decoded) {
  if (block.mode == BlockMode::kEmpty) return OkStatus();
  const auto elements = static_cast<uint32_t>(bytes.size() / ElementBytes(dtype));
  DWS_RETURN_IF_ERROR(DecodeBlock(dtype, elements, block, decoded));
  if (decoded.kind != DecodedBlock::Kind::kSteps && decoded.kind != DecodedBlock::Kind::kNothing) {
    return FailedPreconditionError("the block has new values, which tell no old ones");
  }
  UndoBlock(dtype, decoded, bytes);
  return OkStatus();
}

}  // namespace dws
