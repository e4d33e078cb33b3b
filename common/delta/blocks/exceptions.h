// The steps that are not +-1, in modes A and B (FORMAT.md, "Mode 2", planes 4 to 8): which changes
// they belong to, as gaps, and their sizes.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/bits/bit_stream.h"
#include "common/delta/blocks/block.h"
#include "common/delta/blocks/positions.h"
#include "common/delta/blocks/values.h"

namespace dws {

// The parameters of one block's exceptions.
struct ExceptionCoding {
  static constexpr uint32_t kCountBits = 16;
  static constexpr uint32_t kHeaderBits =
      kCountBits + GapCoding::kParameterBits + ValueCoding::kParameterBits;

  GapCoding gaps;
  ValueCoding magnitudes;

  uint64_t bits() const { return kHeaderBits + gaps.bits + magnitudes.bits; }
};

// `exceptions`: numbers of changes, ascending, not empty; `magnitudes`: |step| - 2 of each.
ExceptionCoding ChooseExceptionCoding(std::span<const uint16_t> exceptions,
                                      std::span<const uint64_t> magnitudes);
void WriteExceptions(std::span<const uint16_t> exceptions, std::span<const uint64_t> magnitudes,
                     const ExceptionCoding& coding, BitWriter& writer);

// Reads the exceptions from bit `begin` on and replaces their steps in decoded.values, which are
// +-1 so far. Returns the end of the last plane. DATA_LOSS: damaged.
Result<uint64_t> ReadExceptions(ByteSpan payload, uint64_t begin, uint32_t element_bits,
                                DecodedBlock& decoded);

}  // namespace dws
