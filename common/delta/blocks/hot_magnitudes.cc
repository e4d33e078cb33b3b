// Remainders come first: their widths follow from the old elements, so a reader knows where the
// quotients begin.
#include "common/delta/blocks/hot_magnitudes.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/delta/bits/element.h"
#include "common/delta/bits/escapes.h"
#include "common/delta/kernels/class_index.h"
#include "common/delta/kernels/class_steps.h"

namespace dws {

void LoadMagnitudeBytes(DType dtype, ByteSpan block, std::span<const uint16_t> positions,
                        std::vector<uint8_t>& magnitude_bytes) {
  magnitude_bytes.resize(positions.size());
  WithElement(dtype, [&](auto element) {
    using Element = decltype(element);
    for (size_t i = 0; i < positions.size(); ++i) {
      magnitude_bytes[i] = MagnitudeByte(
          LoadLe<typename Element::Bits>(block.data() + size_t{positions[i]} * Element::kBytes));
    }
  });
}

void FindHotChanges(const ClassTable& table, std::span<const uint8_t> magnitude_bytes,
                    uint32_t element_bits, HotMagnitudes& hot) {
  const InstructionSet set = ActiveInstructionSet();
  const auto count = static_cast<uint32_t>(magnitude_bytes.size());
  hot.mask.resize(CeilDiv(count, 64));
  kernels::MaskBelow(set, magnitude_bytes.data(), count, table.hot_below, hot.mask.data());
  hot.changes.resize(count + kernels::kNumbersSlack);
  hot.changes.resize(kernels::ListOnes(set, hot.mask.data(), count, hot.changes.data()));
  hot.widths.resize(hot.changes.size());
  for (size_t i = 0; i < hot.changes.size(); ++i) {
    hot.widths[i] = HotWidth(table, magnitude_bytes[hot.changes[i]], element_bits);
  }
}

void PlanHotMagnitudes(HotMagnitudes& hot) {
  DWS_CHECK(hot.values.size() == hot.widths.size());
  uint64_t escapes = 0;  // the bitwise or of all: as wide as the widest
  uint64_t escape_count = 0;
  hot.bits = 0;
  for (size_t i = 0; i < hot.values.size(); ++i) {
    const uint64_t quotient = hot.values[i] >> hot.widths[i];
    hot.bits += hot.widths[i] + std::min<uint64_t>(quotient, kQuotientMax) + 1;
    if (quotient < kQuotientMax) continue;
    escapes |= quotient - kQuotientMax;
    ++escape_count;
  }
  hot.escape_width = escape_count == 0 ? 0 : EscapeWidth(escapes);
  hot.bits += escape_count * hot.escape_width;
}

// Puts three numbers together: each Put waits for the one before.
void WriteHotMagnitudes(const HotMagnitudes& hot, BitWriter& writer) {
  constexpr size_t kTogether = 3;
  static_assert(kTogether * (kQuotientMax + 1) <= BitWriter::kPutBitsMax);
  static_assert(kTogether * HotMagnitudes::kWidthMax <= BitWriter::kPutBitsMax);
  DWS_CHECK(hot.values.size() == hot.widths.size());
  const size_t count = hot.values.size();
  for (size_t i = 0; i < count; i += kTogether) {
    uint64_t bits = 0;
    uint32_t used = 0;
    for (size_t j = i; j < std::min(i + kTogether, count); ++j) {
      bits |= (hot.values[j] & LowBits(hot.widths[j])) << used;
      used += hot.widths[j];
    }
    writer.Put(bits, used);
  }
  for (size_t i = 0; i < count; i += kTogether) {
    uint64_t bits = 0;
    uint32_t used = 0;
    for (size_t j = i; j < std::min(i + kTogether, count); ++j) {
      used +=
          static_cast<uint32_t>(std::min<uint64_t>(hot.values[j] >> hot.widths[j], kQuotientMax));
      bits |= uint64_t{1} << used++;
    }
    writer.Put(bits, used);
  }
  if (hot.escape_width == 0) return;
  for (size_t i = 0; i < hot.values.size(); ++i) {
    const uint64_t quotient = hot.values[i] >> hot.widths[i];
    if (quotient >= kQuotientMax) writer.PutWide(quotient - kQuotientMax, hot.escape_width);
  }
}

std::optional<uint64_t> ReadHotMagnitudes(ByteSpan payload, uint64_t begin,
                                          std::span<uint64_t> scratch, HotMagnitudes& hot) {
  uint64_t quotients = begin;
  for (const uint8_t width : hot.widths) quotients += width;
  if (quotients > payload.size() * 8) return std::nullopt;
  const size_t count = hot.widths.size();
  DWS_CHECK(scratch.size() >= count);
  const std::optional<uint64_t> quotients_end =
      SelectOnes(payload, quotients, static_cast<uint32_t>(count), scratch.data());
  if (!quotients_end.has_value()) return std::nullopt;

  hot.values.resize(count);
  EscapeReader escapes(payload, *quotients_end, hot.escape_width);
  uint64_t next = 0;  // bits of the quotient plane before this quotient
  uint64_t remainder = begin;
  for (size_t i = 0; i < count; ++i) {
    uint64_t quotient = scratch[i] - next;
    next = scratch[i] + 1;
    if (!escapes.Complete(quotient)) return std::nullopt;
    if (quotient > ~uint64_t{0} >> hot.widths[i]) return std::nullopt;
    hot.values[i] = quotient << hot.widths[i] | LoadBits(payload, remainder, hot.widths[i]);
    remainder += hot.widths[i];
  }
  return escapes.End();
}

}  // namespace dws
