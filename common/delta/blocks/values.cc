#include "common/delta/blocks/values.h"

#include <algorithm>
#include <array>
#include <bit>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/delta/bits/escapes.h"
#include "common/delta/kernels/value_cost.h"

namespace dws {
namespace {

// Widths that are tried below the median's, and from it on (FORMAT.md, "Values").
constexpr uint32_t kWidthsBelow = 3;
constexpr uint32_t kWidthsAbove = 2;

// The smallest width that more than half of the values fit, all of which fit `end`.
uint32_t MedianWidth(std::span<const uint64_t> values, uint32_t end) {
  uint32_t width = 0;
  while (width < end) {
    const uint32_t middle = (width + end) / 2;
    if (kernels::CountNarrow(ActiveInstructionSet(), values.data(), values.size(), middle) >
        values.size() / 2) {
      end = middle;
    } else {
      width = middle + 1;
    }
  }
  return width;
}

ValueCoding RiceCoding(const kernels::QuotientSum& sum, size_t count, uint64_t max,
                       uint32_t width) {
  const uint64_t largest = max >> width;
  const uint32_t escape_width = largest < kQuotientMax ? 0 : EscapeWidth(largest - kQuotientMax);
  return {.width = width,
          .fixed = false,
          .escape_width = escape_width,
          .bits = count * (width + 1) + sum.quotients + sum.at_limit * escape_width};
}

}  // namespace

uint32_t PackValueCoding(const ValueCoding& coding) {
  return coding.width | (coding.fixed ? 1u << 7 : 0u) | coding.escape_width << 8;
}

std::optional<ValueCoding> UnpackValueCoding(uint32_t parameters, uint32_t element_bits) {
  const ValueCoding coding{.width = parameters & 0x7F,
                           .fixed = (parameters >> 7 & 1) != 0,
                           .escape_width = parameters >> 8};
  if (coding.width > element_bits) return std::nullopt;
  if (coding.fixed && coding.escape_width != 0) return std::nullopt;
  if (!coding.fixed && coding.width == element_bits) return std::nullopt;
  if (coding.width + coding.escape_width > element_bits) return std::nullopt;
  return coding;
}

ValueCoding ChooseValueCoding(std::span<const uint64_t> values) {
  const InstructionSet set = ActiveInstructionSet();
  const uint64_t max = kernels::MaxValue(set, values.data(), values.size());
  const uint32_t full_width = static_cast<uint32_t>(std::bit_width(max));
  ValueCoding best{.width = full_width, .fixed = true, .bits = values.size() * full_width};
  // Rice codes are best when about half of the values are below 2^width.
  const uint32_t median = MedianWidth(values, full_width);
  const uint32_t first = median > kWidthsBelow ? median - kWidthsBelow : 0;
  const uint32_t end = std::max(first, std::min(median + kWidthsAbove, full_width));
  std::array<kernels::QuotientSum, kWidthsBelow + kWidthsAbove> sums;
  kernels::SumQuotients(set, values.data(), values.size(), first, kQuotientMax,
                        std::span(sums).first(end - first));
  for (uint32_t width = first; width < end; ++width) {
    const ValueCoding rice = RiceCoding(sums[width - first], values.size(), max, width);
    if (rice.bits < best.bits) best = rice;
  }
  DWS_CHECK(best.width + best.escape_width <= 64);
  return best;
}

// Puts as many remainders in each Put as fit.
void WriteValueRemainders(std::span<const uint64_t> values, const ValueCoding& coding,
                          BitWriter& writer) {
  if (coding.width == 0) return;
  const uint64_t mask = LowBits(coding.width);
  const size_t together = BitWriter::kPutBitsMax / coding.width;
  size_t i = 0;
  for (; together > 1 && i + together <= values.size(); i += together) {
    uint64_t bits = 0;
    uint32_t used = 0;
    for (size_t j = 0; j < together; ++j, used += coding.width) {
      bits |= (values[i + j] & mask) << used;
    }
    writer.Put(bits, used);
  }
  for (; i < values.size(); ++i) writer.PutWide(values[i] & mask, coding.width);
}

void WriteValueQuotients(std::span<const uint64_t> values, const ValueCoding& coding,
                         BitWriter& writer) {
  if (coding.fixed) return;
  DWS_CHECK(coding.width < 64);
  const auto quotient = [&coding](uint64_t value) {
    return static_cast<uint32_t>(std::min<uint64_t>(value >> coding.width, kQuotientMax));
  };
  constexpr size_t kTogether = BitWriter::kPutBitsMax / (kQuotientMax + 1);
  size_t i = 0;
  for (; i + kTogether <= values.size(); i += kTogether) {
    uint64_t bits = 0;
    uint32_t used = 0;
    for (size_t j = 0; j < kTogether; ++j) {
      used += quotient(values[i + j]);
      bits |= uint64_t{1} << used++;
    }
    writer.Put(bits, used);
  }
  for (; i < values.size(); ++i) writer.PutUnary(quotient(values[i]));
  if (coding.escape_width == 0) return;
  for (const uint64_t value : values) {
    if (quotient(value) < kQuotientMax) continue;
    writer.PutWide((value >> coding.width) - kQuotientMax, coding.escape_width);
  }
}

std::optional<uint64_t> ReadValues(ByteSpan payload, ValuePlanes planes, const ValueCoding& coding,
                                   std::span<uint64_t> scratch, std::span<uint64_t> values) {
  const uint32_t count = static_cast<uint32_t>(values.size());
  ReadPlane(payload, planes.remainders, coding.width, count, values.data());
  if (coding.fixed) return planes.quotients;
  DWS_CHECK(coding.width < 64 && scratch.size() >= values.size());
  const std::optional<uint64_t> quotients_end =
      SelectOnes(payload, planes.quotients, count, scratch.data());
  if (!quotients_end.has_value()) return std::nullopt;

  EscapeReader escapes(payload, *quotients_end, coding.escape_width);
  uint64_t next = 0;  // bits of the quotient plane before this quotient
  const uint64_t quotient_limit = ~uint64_t{0} >> coding.width;  // more would not fit 64 bits
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t quotient = scratch[i] - next;
    next = scratch[i] + 1;
    if (!escapes.Complete(quotient) || quotient > quotient_limit) return std::nullopt;
    values[i] |= quotient << coding.width;
  }
  return escapes.End();
}

}  // namespace dws
