// Mode A: the changes of a block as gaps, signs and exceptions, all in planes (FORMAT.md, "Mode 2:
// split-Rice"). Encoding needs only the changes; applying needs the old values of the changed
// elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/blocks/exceptions.h"
#include "common/delta/blocks/positions.h"
#include "common/delta/blocks/values.h"
#include "common/model/tensor_spec.h"

namespace dws {

// How the changes of one block are coded, with the exact cost. Reused for the next blocks to keep
// its memory.
struct SplitRicePlan {
  GapCoding gaps;
  std::span<const uint64_t> signs;       // a bit for each change, 1 for a negative step
  std::span<const uint16_t> exceptions;  // the changes whose steps are not +-1
  std::span<const uint64_t> magnitudes;  // |step| - 2 of each exception
  ExceptionCoding exception_coding;      // meaningless without exceptions
  uint64_t bits = 0;

  uint64_t PayloadBytes() const { return CeilDiv(bits, 8); }

  // The memory of the spans.
  std::vector<uint64_t> sign_room;
  std::vector<uint16_t> exception_room;
  std::vector<uint64_t> magnitude_room;
};

// `changes` is not empty.
void PlanSplitRice(DType dtype, const BlockChanges& changes, SplitRicePlan& plan);
EncodedBlock WriteSplitRice(const BlockChanges& changes, const SplitRicePlan& plan);

// Fills positions and steps. `block.nnz` is between 1 and `element_count`. DATA_LOSS says which
// plane is damaged.
Status ReadSplitRice(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                     DecodedBlock& decoded);

// The sign plane, which class-split has as well: `count` signs, a bit each.
void WriteSigns(std::span<const uint64_t> signs, size_t count, BitWriter& writer);
// Steps of +1 and -1 from the sign plane at bit `begin`, which lies inside `payload`.
void ReadSigns(ByteSpan payload, uint64_t begin, uint32_t element_bits,
               std::vector<uint64_t>& steps);

}  // namespace dws
