#include "common/delta/blocks/split_rice.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/delta/bits/element.h"
#include "common/delta/kernels/gaps.h"
#include "common/delta/kernels/pack.h"

namespace dws {
namespace {

using ReadSignsKernel = void (*)(const kernels::SignInput& input, uint64_t* steps);

ReadSignsKernel ChooseReadSigns() {
#if defined(__x86_64__)
  if (ActiveInstructionSet() == InstructionSet::kAvx512) return kernels::ReadSignsAvx512;
#endif
  return kernels::ReadSignsPortable;
}

constexpr uint32_t kExceptionsFlag = 1u << GapCoding::kParameterBits;

}  // namespace

void WriteSigns(std::span<const uint64_t> signs, size_t count, BitWriter& writer) {
  constexpr uint32_t kHalf = 32;
  size_t left = count;
  for (const uint64_t word : signs) {
    for (const uint64_t half : {word & LowBits(kHalf), word >> kHalf}) {
      writer.Put(half, static_cast<uint32_t>(std::min<size_t>(left, kHalf)));
      left -= std::min<size_t>(left, kHalf);
    }
  }
}

void ReadSigns(ByteSpan payload, uint64_t begin, uint32_t element_bits,
               std::vector<uint64_t>& steps) {
  static const ReadSignsKernel read_signs = ChooseReadSigns();
  read_signs({.payload = payload.data(),
              .size_bytes = payload.size(),
              .begin = begin,
              .count = static_cast<uint32_t>(steps.size()),
              .plus = 1,
              .minus = LowBits(element_bits)},
             steps.data());
}

void PlanSplitRice(DType dtype, const BlockChanges& changes, SplitRicePlan& plan) {
  const size_t count = changes.size();
  DWS_CHECK(count != 0 && changes.positions.size() == changes.steps.size());
  plan.gaps = ChooseGapCoding(changes.positions);
  plan.bits = plan.gaps.bits + count;
  if (plan.exception_room.size() < count + kernels::StepScan::kSlack) {
    plan.exception_room.resize(count + kernels::StepScan::kSlack);
    plan.magnitude_room.resize(count + kernels::StepScan::kSlack);
    plan.sign_room.resize(CeilDiv(count, 64));
  }
  kernels::StepScan scan{.signs = plan.sign_room.data(),
                         .exceptions = plan.exception_room.data(),
                         .magnitudes = plan.magnitude_room.data()};
  kernels::ScanSteps(ActiveInstructionSet(), changes.steps.data(), static_cast<uint32_t>(count),
                     ElementBytes(dtype) * 8, scan);
  plan.signs = std::span(plan.sign_room).first(CeilDiv(count, 64));
  plan.exceptions = std::span(plan.exception_room).first(scan.exception_count);
  plan.magnitudes = std::span(plan.magnitude_room).first(scan.exception_count);
  if (plan.exceptions.empty()) return;
  plan.exception_coding = ChooseExceptionCoding(plan.exceptions, plan.magnitudes);
  plan.bits += plan.exception_coding.bits();
}

EncodedBlock WriteSplitRice(const BlockChanges& changes, const SplitRicePlan& plan) {
  const bool has_exceptions = !plan.exceptions.empty();
  EncodedBlock block{
      .mode = BlockMode::kSplitRice,
      .nnz = static_cast<uint32_t>(changes.size()),
      .parameters = static_cast<uint16_t>(plan.gaps.k | (has_exceptions ? kExceptionsFlag : 0)),
      .payload = std::vector<std::byte>(plan.PayloadBytes() + BitWriter::kSlackBytes)};
  BitWriter writer(block.payload.data());
  WriteGapRemainders(changes.positions, plan.gaps.k, writer);
  WriteSigns(plan.signs, changes.size(), writer);
  WriteGapQuotients(changes.positions, plan.gaps.k, writer);
  if (has_exceptions) {
    WriteExceptions(plan.exceptions, plan.magnitudes, plan.exception_coding, writer);
  }
  DWS_CHECK(writer.end() == block.payload.data() + plan.PayloadBytes());
  block.payload.resize(plan.PayloadBytes());
  return block;
}

Status ReadSplitRice(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                     DecodedBlock& decoded) {
  const uint32_t element_bits = ElementBytes(dtype) * 8;
  const uint32_t k = block.parameters & LowBits(GapCoding::kParameterBits);
  if (block.parameters >= kExceptionsFlag * 2) {
    return DataLossError("split-rice: parameters {:x}, expected 5 bits", block.parameters);
  }
  const uint64_t signs_begin = uint64_t{block.nnz} * k;
  const uint64_t quotients_begin = signs_begin + block.nnz;
  if (quotients_begin > block.payload.size() * 8) {
    return DataLossError("split-rice: remainders and signs of {} changes are cut off at {} bytes",
                         block.nnz, block.payload.size());
  }
  decoded.kind = DecodedBlock::Kind::kSteps;
  decoded.positions.resize(block.nnz);
  decoded.values.resize(block.nnz);
  // decoded.values is only used as scratch here; ReadSigns overwrites it.
  const std::optional<uint64_t> gaps_end =
      ReadGaps(block.payload, {.remainders = 0, .quotients = quotients_begin}, k, element_count,
               decoded.values, decoded.positions);
  if (!gaps_end.has_value()) {
    return DataLossError("split-rice: {} positions in {} elements are damaged", block.nnz,
                         element_count);
  }
  ReadSigns(block.payload, signs_begin, element_bits, decoded.values);
  uint64_t end = *gaps_end;
  if ((block.parameters & kExceptionsFlag) != 0) {
    DWS_ASSIGN_OR_RETURN(end, ReadExceptions(block.payload, end, element_bits, decoded));
  }
  if (!EndsCleanly(block.payload, end)) {
    return DataLossError("split-rice: planes end at bit {} of {} bytes, or the padding is not zero",
                         end, block.payload.size());
  }
  return OkStatus();
}

}  // namespace dws
