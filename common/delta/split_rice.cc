#include "common/delta/split_rice.h"

#include "common/base/check.h"
#include "common/delta/element.h"

namespace dws {
namespace {

constexpr uint32_t kExceptionsFlag = 1u << GapCoding::kParameterBits;
constexpr uint32_t kCountBits = 16;
constexpr uint32_t kExceptionHeaderBits =
    kCountBits + GapCoding::kParameterBits + ValueCoding::kParameterBits;

// Magnitude of a step of w bits, as a number: the most negative one has 2^(w-1).
uint64_t Magnitude(int64_t step) {
  return step < 0 ? ~static_cast<uint64_t>(step) + 1 : static_cast<uint64_t>(step);
}

// True for steps other than -1, 0 and 1.
bool IsException(int64_t step) { return static_cast<uint64_t>(step) + 1 > 2; }

void CollectExceptions(const BlockChanges& changes, uint32_t element_bits, SplitRicePlan& plan) {
  size_t count = 0;
  for (const uint64_t step : changes.steps)
    count += IsException(SignedStep(step, element_bits)) ? 1 : 0;
  if (count == 0) return;
  // Written without a branch, so one element more than there are is touched.
  plan.exceptions.resize(count + 1);
  plan.magnitudes.resize(count + 1);
  size_t found = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    const int64_t step = SignedStep(changes.steps[i], element_bits);
    plan.exceptions[found] = static_cast<uint16_t>(i);
    plan.magnitudes[found] = Magnitude(step) - 2;
    found += IsException(step) ? 1 : 0;
  }
  plan.exceptions.resize(count);
  plan.magnitudes.resize(count);
}

void WriteSigns(const std::vector<uint64_t>& steps, uint32_t element_bits, BitWriter& writer) {
  constexpr size_t kGroup = 32;
  for (size_t i = 0; i < steps.size(); i += kGroup) {
    const uint32_t count = static_cast<uint32_t>(std::min(kGroup, steps.size() - i));
    uint64_t signs = 0;
    for (uint32_t j = 0; j < count; ++j) signs |= (steps[i + j] >> (element_bits - 1) & 1) << j;
    writer.Put(signs, count);
  }
}

// Steps of +1 and -1 from the sign plane at bit `begin`.
void ReadSigns(ByteSpan payload, uint64_t begin, uint32_t element_bits,
               std::vector<uint64_t>& steps) {
  constexpr size_t kGroup = 32;
  const uint64_t mask = LowBits(element_bits);
  for (size_t i = 0; i < steps.size(); i += kGroup) {
    const uint64_t signs = LoadBits57(payload, begin + i);
    const size_t count = std::min(kGroup, steps.size() - i);
    for (size_t j = 0; j < count; ++j) steps[i + j] = (1 - 2 * (signs >> j & 1)) & mask;
  }
}

// Puts the steps of the exceptions, coded from bit `begin` on, in their places. Returns the
// payload's end.
Result<uint64_t> ReadExceptions(ByteSpan payload, uint64_t begin, uint32_t element_bits,
                                DecodedBlock& decoded) {
  const uint64_t payload_bits = payload.size() * 8;
  if (begin + kExceptionHeaderBits > payload_bits) {
    return DataLossError("split-rice: the header of the exceptions is cut off at {} bytes",
                         payload.size());
  }
  const uint64_t header = LoadBits(payload, begin, kExceptionHeaderBits);
  const uint32_t count = static_cast<uint32_t>(header & LowBits(kCountBits)) + 1;
  const uint32_t k = header >> kCountBits & LowBits(GapCoding::kParameterBits);
  const std::optional<ValueCoding> coding = UnpackValueCoding(
      static_cast<uint32_t>(header >> (kCountBits + GapCoding::kParameterBits)), element_bits);
  if (count > decoded.positions.size() || !coding.has_value()) {
    return DataLossError(
        "split-rice: the header of the exceptions has {} of {} changes and parameters {:x}", count,
        decoded.positions.size(), header >> kCountBits);
  }
  const GapPlanes gaps{.remainders = begin + kExceptionHeaderBits,
                       .quotients = begin + kExceptionHeaderBits + uint64_t{count} * k +
                                    coding->RemainderBits(count)};
  if (gaps.quotients > payload_bits) {
    return DataLossError("split-rice: the remainders of {} exceptions are cut off at {} bytes",
                         count, payload.size());
  }

  std::vector<uint16_t> exceptions(count);
  decoded.scratch.resize(2 * size_t{count});
  const std::span<uint64_t> scratch(decoded.scratch.data(), count);
  const std::span<uint64_t> magnitudes(decoded.scratch.data() + count, count);
  const std::optional<uint64_t> gaps_end = ReadGaps(
      payload, gaps, k, static_cast<uint32_t>(decoded.positions.size()), scratch, exceptions);
  if (!gaps_end.has_value()) {
    return DataLossError("split-rice: the positions of {} exceptions are damaged", count);
  }
  const ValuePlanes values{.remainders = gaps.remainders + uint64_t{count} * k,
                           .quotients = *gaps_end};
  const std::optional<uint64_t> end = ReadValues(payload, values, *coding, scratch, magnitudes);
  if (!end.has_value()) {
    return DataLossError("split-rice: the magnitudes of {} exceptions are damaged", count);
  }

  const uint64_t mask = LowBits(element_bits);
  const uint64_t magnitude_max = uint64_t{1} << (element_bits - 1);  // of a negative step
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t& step = decoded.values[exceptions[i]];
    const uint64_t negative = step == 1 ? 0 : 1;
    if (magnitudes[i] > magnitude_max - 3 + negative) {
      return DataLossError(
          "split-rice: an exception has a magnitude of {} above 2, too large for {} bits",
          magnitudes[i], element_bits);
    }
    const uint64_t magnitude = magnitudes[i] + 2;
    step = ((magnitude ^ (0 - negative)) + negative) & mask;
  }
  return *end;
}

}  // namespace

SplitRicePlan PlanSplitRice(DType dtype, const BlockChanges& changes) {
  DWS_CHECK(changes.size() != 0 && changes.positions.size() == changes.steps.size());
  SplitRicePlan plan;
  plan.gaps = ChooseGapCoding(changes.positions);
  plan.bits = plan.gaps.bits + changes.size();
  CollectExceptions(changes, ElementBytes(dtype) * 8, plan);
  if (plan.exceptions.empty()) return plan;
  plan.exception_gaps = ChooseGapCoding(plan.exceptions);
  plan.exception_magnitudes = ChooseValueCoding(plan.magnitudes);
  plan.bits += kExceptionHeaderBits + plan.exception_gaps.bits + plan.exception_magnitudes.bits;
  return plan;
}

EncodedBlock WriteSplitRice(DType dtype, const BlockChanges& changes, const SplitRicePlan& plan) {
  const bool has_exceptions = !plan.exceptions.empty();
  EncodedBlock block{
      .mode = BlockMode::kSplitRice,
      .nnz = static_cast<uint32_t>(changes.size()),
      .parameters = static_cast<uint16_t>(plan.gaps.k | (has_exceptions ? kExceptionsFlag : 0)),
      .payload = std::vector<std::byte>(plan.PayloadBytes() + BitWriter::kSlackBytes)};
  BitWriter writer(block.payload.data());
  WriteGapRemainders(changes.positions, plan.gaps.k, writer);
  WriteSigns(changes.steps, ElementBytes(dtype) * 8, writer);
  WriteGapQuotients(changes.positions, plan.gaps.k, writer);
  if (has_exceptions) {
    writer.Put(plan.exceptions.size() - 1, kCountBits);
    writer.Put(plan.exception_gaps.k, GapCoding::kParameterBits);
    writer.Put(PackValueCoding(plan.exception_magnitudes), ValueCoding::kParameterBits);
    WriteGapRemainders(plan.exceptions, plan.exception_gaps.k, writer);
    WriteValueRemainders(plan.magnitudes, plan.exception_magnitudes, writer);
    WriteGapQuotients(plan.exceptions, plan.exception_gaps.k, writer);
    WriteValueQuotients(plan.magnitudes, plan.exception_magnitudes, writer);
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
