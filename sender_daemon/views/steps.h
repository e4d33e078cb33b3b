// The steps of a trainer's block, which a capture has encoded a moment ago, and what they say of
// magnitudes of BF16.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "common/base/check.h"
#include "common/delta/bits/element.h"
#include "common/delta/blocks/block.h"
#include "common/delta/decoder.h"
#include "common/model/layout.h"

namespace dws {

// Decodes the steps of a block of the slice `from`.
inline void DecodeSteps(const RankLayout::SliceEntry& from, uint32_t block,
                        const EncodedBlock& encoded, DecodedBlock& decoded) {
  // An error is our own bug.
  DWS_CHECK(
      DecodeBlock(from.dtype, BlockElements(from.elements, block), ViewOf(encoded), decoded).ok());
  DWS_CHECK(decoded.kind == DecodedBlock::Kind::kSteps);
}

inline uint16_t Magnitude(uint16_t bits) { return bits & 0x7FFF; }

// What an element of BF16 was before the step that led to `after`.
inline uint16_t BeforeStep(uint16_t after, uint64_t step) {
  return Element<uint16_t, Mapping::kFloat>::FromStep(after, static_cast<uint16_t>(0 - step));
}

// How far a step leads: it makes no magnitude larger by more than this.
inline uint32_t StepLength(uint16_t step) {
  return static_cast<uint32_t>(std::abs(SignedStep(step, 16)));
}

}  // namespace dws
