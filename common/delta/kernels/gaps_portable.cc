#include <algorithm>
#include <optional>

#include "common/delta/bits/bit_stream.h"
#include "common/delta/kernels/gaps.h"

namespace dws::kernels {

GapOutput ReadGapsPortable(const GapInput& input, uint64_t* scratch, uint16_t* positions) {
  const ByteSpan payload(input.payload, input.size_bytes);
  const std::optional<uint64_t> end = SelectOnes(payload, input.quotients, input.count, scratch);
  if (!end.has_value()) return {};
  ReadPlane(payload, input.remainders, input.k, input.count, positions);
  // Before the i-th one bit there are i ones and the zeros of all quotients up to it. So only the
  // remainders must be summed up.
  uint64_t position = 0;
  uint64_t remainders = 0;
  for (uint32_t i = 0; i < input.count; ++i) {
    remainders += positions[i];
    position = ((scratch[i] - i) << input.k) + remainders + i;
    positions[i] = static_cast<uint16_t>(position);
  }
  return {.complete = true, .end = *end, .last = position};
}

void ReadSignsPortable(const SignInput& input, uint64_t* steps) {
  constexpr uint32_t kGroup = 32;
  const ByteSpan payload(input.payload, input.size_bytes);
  for (uint32_t i = 0; i < input.count; i += kGroup) {
    const uint64_t signs = LoadBits57(payload, input.begin + i);
    const uint32_t count = std::min(kGroup, input.count - i);
    for (uint32_t j = 0; j < count; ++j) {
      steps[i + j] = (signs >> j & 1) != 0 ? input.minus : input.plus;
    }
  }
}

}  // namespace dws::kernels
