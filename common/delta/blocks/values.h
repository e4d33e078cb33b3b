// Small unsigned numbers in planes (FORMAT.md, "Values"): remainders of fixed width, quotients in
// unary up to a limit, and the excess over the limit in a plane of escapes. Used for the magnitudes
// of exceptions and the steps of dense blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/base/bytes.h"
#include "common/delta/bits/bit_stream.h"

namespace dws {

// The parameters that code one block's values.
struct ValueCoding {
  static constexpr uint32_t kParameterBits = 15;

  uint32_t width = 0;         // bits of a remainder
  bool fixed = false;         // remainders are the whole values: no quotients or escapes
  uint32_t escape_width = 0;  // bits of an escape, 0 when there are none
  uint64_t bits = 0;          // of all planes; set only by the encoder

  uint64_t RemainderBits(uint64_t count) const { return count * width; }
};

// bits 0-6 width, bit 7 fixed, bits 8-14 escape width.
uint32_t PackValueCoding(const ValueCoding& coding);
// nullopt: a combination that no encoder writes for elements of `element_bits` bits.
std::optional<ValueCoding> UnpackValueCoding(uint32_t parameters, uint32_t element_bits);

// Returns the cheapest of the codings that FORMAT.md lists. `values` is not empty.
ValueCoding ChooseValueCoding(std::span<const uint64_t> values);

void WriteValueRemainders(std::span<const uint64_t> values, const ValueCoding& coding,
                          BitWriter& writer);
// Writes the quotients, then the escapes.
void WriteValueQuotients(std::span<const uint64_t> values, const ValueCoding& coding,
                         BitWriter& writer);

// The first bits of the planes in the payload; escapes follow the quotients.
struct ValuePlanes {
  uint64_t remainders = 0;
  uint64_t quotients = 0;
};

// Reads as many values as `values` has entries; `scratch` has as many. The remainder plane must lie
// inside `payload`. Returns the end of the last plane; nullopt when one is cut off or not
// canonical.
std::optional<uint64_t> ReadValues(ByteSpan payload, ValuePlanes planes, const ValueCoding& coding,
                                   std::span<uint64_t> scratch, std::span<uint64_t> values);

}  // namespace dws
