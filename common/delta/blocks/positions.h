// Ascending positions as gaps in two planes (FORMAT.md, "Gaps"): remainders of k bits, and
// quotients in unary. Codes the changed elements of a block, and the exceptions among them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/base/bytes.h"
#include "common/delta/bits/bit_stream.h"

namespace dws {

// The parameters that code one block's positions as gaps.
struct GapCoding {
  static constexpr uint32_t kParameterBits = 4;  // k is 0 to 15

  uint32_t k = 0;     // Rice parameter
  uint64_t bits = 0;  // of both planes
};

// The k of least cost, the smallest among equals. `positions` are strictly ascending, not empty.
GapCoding ChooseGapCoding(std::span<const uint16_t> positions);

void WriteGapRemainders(std::span<const uint16_t> positions, uint32_t k, BitWriter& writer);
void WriteGapQuotients(std::span<const uint16_t> positions, uint32_t k, BitWriter& writer);

// The first bits of the two planes of gaps in the payload.
struct GapPlanes {
  uint64_t remainders = 0;
  uint64_t quotients = 0;
};

// Reads as many positions as `positions` has entries; `scratch` has as many. The remainder plane
// must lie inside `payload`. Returns the end of the quotient plane, or nullopt if that plane is
// cut off or a position is not below `limit`.
std::optional<uint64_t> ReadGaps(ByteSpan payload, GapPlanes planes, uint32_t k, uint32_t limit,
                                 std::span<uint64_t> scratch, std::span<uint16_t> positions);

}  // namespace dws
