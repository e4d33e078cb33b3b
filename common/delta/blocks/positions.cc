#include "common/delta/blocks/positions.h"

#include <bit>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/delta/kernels/gaps.h"
#include "common/delta/kernels/pack.h"

namespace dws {
namespace {

uint64_t GapBits(std::span<const uint16_t> positions, uint32_t k) {
  return positions.size() * (k + 1) +
         kernels::SumGapQuotients(ActiveInstructionSet(), positions.data(),
                                  static_cast<uint32_t>(positions.size()), k);
}

using ReadGapsKernel = kernels::GapOutput (*)(const kernels::GapInput& input, uint64_t* scratch,
                                              uint16_t* positions);

ReadGapsKernel ChooseReadGaps() {
#if defined(__x86_64__)
  if (ActiveInstructionSet() == InstructionSet::kAvx512) return kernels::ReadGapsAvx512;
#endif
  return kernels::ReadGapsPortable;
}

}  // namespace

GapCoding ChooseGapCoding(std::span<const uint16_t> positions) {
  DWS_CHECK(!positions.empty());
  // From k to k + 1 a gap g saves ceil((g >> k) / 2) - 1 bits, which never grows with k. So the
  // cost is convex in k, and walking downhill from the estimate ends at the minimum.
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
  DWS_CHECK(k <= kMax);
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
  if (positions.empty()) return planes.quotients;
  DWS_CHECK(scratch.size() >= positions.size());
  static const ReadGapsKernel read_gaps = ChooseReadGaps();
  const kernels::GapOutput gaps = read_gaps({.payload = payload.data(),
                                             .size_bytes = payload.size(),
                                             .remainders = planes.remainders,
                                             .quotients = planes.quotients,
                                             .k = k,
                                             .count = static_cast<uint32_t>(positions.size())},
                                            scratch.data(), positions.data());
  // Positions ascend, so the last one is the largest.
  if (!gaps.complete || gaps.last >= limit) return std::nullopt;
  return gaps.end;
}

}  // namespace dws
