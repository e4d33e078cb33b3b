// The planes follow each other without sizes. A reader computes where each plane begins, and checks
// that this is inside the payload before it reads the plane.
#include "common/delta/blocks/exceptions.h"

#include <optional>

#include "common/base/check.h"
#include "common/delta/bits/element.h"

namespace dws {

ExceptionCoding ChooseExceptionCoding(std::span<const uint16_t> exceptions,
                                      std::span<const uint64_t> magnitudes) {
  return {.gaps = ChooseGapCoding(exceptions), .magnitudes = ChooseValueCoding(magnitudes)};
}

void WriteExceptions(std::span<const uint16_t> exceptions, std::span<const uint64_t> magnitudes,
                     const ExceptionCoding& coding, BitWriter& writer) {
  DWS_CHECK(!exceptions.empty() && exceptions.size() == magnitudes.size());
  writer.Put(exceptions.size() - 1, ExceptionCoding::kCountBits);
  writer.Put(coding.gaps.k, GapCoding::kParameterBits);
  writer.Put(PackValueCoding(coding.magnitudes), ValueCoding::kParameterBits);
  WriteGapRemainders(exceptions, coding.gaps.k, writer);
  WriteValueRemainders(magnitudes, coding.magnitudes, writer);
  WriteGapQuotients(exceptions, coding.gaps.k, writer);
  WriteValueQuotients(magnitudes, coding.magnitudes, writer);
}

Result<uint64_t> ReadExceptions(ByteSpan payload, uint64_t begin, uint32_t element_bits,
                                DecodedBlock& decoded) {
  DWS_CHECK(decoded.values.size() == decoded.positions.size());
  const uint64_t payload_bits = payload.size() * 8;
  if (begin + ExceptionCoding::kHeaderBits > payload_bits) {
    return DataLossError("exceptions: their header is cut off at {} bytes", payload.size());
  }
  const uint64_t header = LoadBits(payload, begin, ExceptionCoding::kHeaderBits);
  const uint32_t count = static_cast<uint32_t>(header & LowBits(ExceptionCoding::kCountBits)) + 1;
  const uint32_t k = header >> ExceptionCoding::kCountBits & LowBits(GapCoding::kParameterBits);
  const std::optional<ValueCoding> coding = UnpackValueCoding(
      static_cast<uint32_t>(header >> (ExceptionCoding::kCountBits + GapCoding::kParameterBits)),
      element_bits);
  if (count > decoded.positions.size() || !coding.has_value()) {
    return DataLossError("exceptions: their header has {} of {} changes and parameters {:x}", count,
                         decoded.positions.size(), header >> ExceptionCoding::kCountBits);
  }
  const GapPlanes gaps{.remainders = begin + ExceptionCoding::kHeaderBits,
                       .quotients = begin + ExceptionCoding::kHeaderBits + uint64_t{count} * k +
                                    coding->RemainderBits(count)};
  if (gaps.quotients > payload_bits) {
    return DataLossError("exceptions: the remainders of {} are cut off at {} bytes", count,
                         payload.size());
  }

  std::vector<uint16_t> exceptions(count);
  decoded.scratch.resize(2 * size_t{count});
  const std::span<uint64_t> scratch(decoded.scratch.data(), count);
  const std::span<uint64_t> magnitudes(decoded.scratch.data() + count, count);
  const std::optional<uint64_t> gaps_end = ReadGaps(
      payload, gaps, k, static_cast<uint32_t>(decoded.positions.size()), scratch, exceptions);
  if (!gaps_end.has_value()) {
    return DataLossError("exceptions: the positions of {} are damaged", count);
  }
  const ValuePlanes values{.remainders = gaps.remainders + uint64_t{count} * k,
                           .quotients = *gaps_end};
  const std::optional<uint64_t> end = ReadValues(payload, values, *coding, scratch, magnitudes);
  if (!end.has_value()) {
    return DataLossError("exceptions: the magnitudes of {} are damaged", count);
  }

  const uint64_t mask = LowBits(element_bits);
  const uint64_t magnitude_max = uint64_t{1} << (element_bits - 1);  // of a negative step
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t& step = decoded.values[exceptions[i]];  // still +-1: only the sign is known
    const uint64_t negative = step == 1 ? 0 : 1;
    if (magnitudes[i] > magnitude_max - 3 + negative) {
      return DataLossError("exceptions: one has a magnitude of {} above 2, too large for {} bits",
                           magnitudes[i], element_bits);
    }
    const uint64_t magnitude = magnitudes[i] + 2;
    step = ((magnitude ^ (0 - negative)) + negative) & mask;
  }
  return *end;
}

}  // namespace dws
