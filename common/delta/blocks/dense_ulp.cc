#include "common/delta/blocks/dense_ulp.h"

#include "common/base/check.h"
#include "common/delta/bits/element.h"

namespace dws {
namespace {

// Small numbers for small steps of either sign: 0, -1, 1, -2, ... become 0, 1, 2, 3, ...
uint64_t ZigZag(int64_t step) {
  return (static_cast<uint64_t>(step) << 1) ^ static_cast<uint64_t>(step >> 63);
}
uint64_t UnZigZag(uint64_t value) { return (value >> 1) ^ (0 - (value & 1)); }

}  // namespace

void PlanDenseUlp(DType dtype, const BlockChanges& changes, uint32_t element_count,
                  DenseUlpPlan& plan) {
  const uint32_t element_bits = ElementBytes(dtype) * 8;
  plan.values.assign(element_count, 0);
  for (size_t i = 0; i < changes.size(); ++i) {
    plan.values[changes.positions[i]] = ZigZag(SignedStep(changes.steps[i], element_bits));
  }
  plan.coding = ChooseValueCoding(plan.values);
}

EncodedBlock WriteDenseUlp(const DenseUlpPlan& plan, uint32_t nnz) {
  EncodedBlock block{
      .mode = BlockMode::kDenseUlp,
      .nnz = nnz,
      .parameters = static_cast<uint16_t>(PackValueCoding(plan.coding)),
      .payload = std::vector<std::byte>(plan.PayloadBytes() + BitWriter::kSlackBytes)};
  BitWriter writer(block.payload.data());
  WriteValueRemainders(plan.values, plan.coding, writer);
  WriteValueQuotients(plan.values, plan.coding, writer);
  DWS_CHECK(writer.end() == block.payload.data() + plan.PayloadBytes());
  block.payload.resize(plan.PayloadBytes());
  return block;
}

Status ReadDenseUlp(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                    DecodedBlock& decoded) {
  const uint32_t element_bits = ElementBytes(dtype) * 8;
  const std::optional<ValueCoding> coding = UnpackValueCoding(block.parameters, element_bits);
  if (!coding.has_value()) {
    return DataLossError("dense-ulp: parameters {:x} are not possible for elements of {} bits",
                         block.parameters, element_bits);
  }
  const ValuePlanes planes{.remainders = 0, .quotients = coding->RemainderBits(element_count)};
  if (planes.quotients > block.payload.size() * 8) {
    return DataLossError("dense-ulp: remainders of {} elements are cut off at {} bytes",
                         element_count, block.payload.size());
  }
  decoded.kind = DecodedBlock::Kind::kSteps;
  decoded.positions.resize(element_count);
  decoded.values.resize(element_count);
  decoded.scratch.resize(element_count);
  const std::optional<uint64_t> end =
      ReadValues(block.payload, planes, *coding, decoded.scratch, decoded.values);
  if (!end.has_value() || !EndsCleanly(block.payload, *end)) {
    return DataLossError("dense-ulp: the planes of {} elements do not fill {} bytes exactly",
                         element_count, block.payload.size());
  }
  // Keep only the changed elements. Their values move to the front, to places already read.
  const uint64_t mask = LowBits(element_bits);
  uint64_t widest = 0;
  uint32_t changed = 0;
  for (uint32_t i = 0; i < element_count; ++i) {
    const uint64_t value = decoded.values[i];
    widest |= value;
    decoded.positions[changed] = static_cast<uint16_t>(i);
    decoded.values[changed] = UnZigZag(value) & mask;
    changed += value != 0 ? 1 : 0;
  }
  if ((widest & ~mask) != 0 || changed != block.nnz) {
    return DataLossError("dense-ulp: {} changed elements of at most {} bits, expected {} of {}",
                         changed, std::bit_width(widest), block.nnz, element_bits);
  }
  decoded.positions.resize(changed);
  decoded.values.resize(changed);
  return OkStatus();
}

}  // namespace dws
