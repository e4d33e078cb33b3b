// The planes of a sparse block, decoded (FORMAT.md, "Gaps" and "Mode 2: split-Rice"). positions.cc
// and split_rice.cc choose the variant. All variants accept and refuse the same bytes, and write
// the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dws::kernels {

// Two planes of gaps inside a payload; reading never leaves it.
struct GapInput {
  const std::byte* payload = nullptr;
  size_t size_bytes = 0;
  uint64_t remainders = 0;  // first bit of each plane
  uint64_t quotients = 0;
  uint32_t k = 0;  // 0 to 15; `count` remainders of k bits lie inside the payload
  uint32_t count = 0;
};
// The last position, or why there is none, and the end of the quotient plane.
struct GapOutput {
  bool complete = false;  // false: the quotient plane is cut off, and nothing else has a meaning
  uint64_t end = 0;
  uint64_t last = 0;  // may be far above what a position can be; then `positions` are meaningless
};

// `positions` has room for `count` (at least 1); `scratch`, as large, is the portable variant's.
GapOutput ReadGapsPortable(const GapInput& input, uint64_t* scratch, uint16_t* positions);
GapOutput ReadGapsAvx512(const GapInput& input, uint64_t* scratch, uint16_t* positions);

// steps[i] is `plus` or `minus` where the bit begin + i of the payload is 0 or 1, for `count` bits
// that lie inside it.
struct SignInput {
  const std::byte* payload = nullptr;
  size_t size_bytes = 0;
  uint64_t begin = 0;
  uint32_t count = 0;
  uint64_t plus = 0;
  uint64_t minus = 0;
};
void ReadSignsPortable(const SignInput& input, uint64_t* steps);
void ReadSignsAvx512(const SignInput& input, uint64_t* steps);

}  // namespace dws::kernels
