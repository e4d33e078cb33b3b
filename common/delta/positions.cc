#include "common/delta/positions.h"

#include <bit>

#include "common/base/instruction_set.h"
#include "common/delta/kernels/pack.h"

namespace dws {
namespace {

uint64_t GapBits(std::span<const uint16_t> positions, uint32_t k) {
  return positions.size() * (k + 1) +
         kernels::SumGapQuotients(ActiveInstructionSet(), positions.data(),
                                  static_cast<uint32_t>(positions.size()), k);
}

}  // namespace

GapCoding ChooseGapCoding(std::span<const uint16_t> positions) {
  // From k to k + 1 a gap g saves ceil((g >> k) / 2) - 1 bits, which never grows with k: the cost
  // is convex in k, so walking downhill from the estimate ends at the minimum.
  constexpr uint32_t kMax = (1u << GapCoding::kParameterBits) - 1;
  const uint64_t mean = positions.back() / positions.size();
  uint32_t k = mean == 0 ? 0 : static_cast<uint32_t>(std::bit_width(mean)) - 1;
  uint64_t bits = GapBits(positions, k);
  while (k < kMax) {
    const uint64_t above = GapBits(positions, k + 1);
    if (above >= bits) break;
    bits = above;
    ++k;
  }
  while (k > 0) {
    const uint64_t below = GapBits(positions, k - 1);
    if (below > bits) break;
    bits = below;
    --k;
  }
  return {.k = k, .bits = bits};
}

void WriteGapRemainders(std::span<const uint16_t> positions, uint32_t k, BitWriter& writer) {
  kernels::PackGapRemainders(ActiveInstructionSet(), positions.data(),
                             static_cast<uint32_t>(positions.size()), k, writer);
}

void WriteGapQuotients(std::span<const uint16_t> positions, uint32_t k, BitWriter& writer) {
  kernels::PackGapQuotients(ActiveInstructionSet(), positions.data(),
                            static_cast<uint32_t>(positions.size()), k, writer);
}

std::optional<uint64_t> ReadGaps(ByteSpan payload, GapPlanes planes, uint32_t k, uint32_t limit,
                                 std::span<uint64_t> scratch, std::span<uint16_t> positions) {
  const uint32_t count = static_cast<uint32_t>(positions.size());
  const std::optional<uint64_t> end = SelectOnes(payload, planes.quotients, count, scratch.data());
  if (!end.has_value()) return std::nullopt;
  ReadPlane(payload, planes.remainders, k, count, positions.data());
  // Before one number i lie i ones and the zeros of all quotients so far, so no quotient needs the
  // one before it; only the remainders are summed up.
  uint64_t position = 0;
  uint64_t remainders = 0;
  for (uint32_t i = 0; i < count; ++i) {
    remainders += positions[i];
    position = ((scratch[i] - i) << k) + remainders + i;
    positions[i] = static_cast<uint16_t>(position);
  }
  // Positions ascend, so the last one bounds all.
  if (count != 0 && position >= limit) return std::nullopt;
  return end;
}

}  // namespace dws
