// Decodes the planes of a sparse block (FORMAT.md, "Gaps" and "Mode 2: split-Rice"). positions.cc
// and split_rice.cc choose the variant. All variants accept and refuse the same bytes, and give the
// same results.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dws::kernels {

// Two planes of gaps inside a payload. A reader reads nothing outside the payload.
struct GapInput {
  const std::byte* payload = nullptr;
  size_t size_bytes = 0;
  uint64_t remainders = 0;  // first bit of each plane
  uint64_t quotients = 0;
  uint32_t k = 0;  // 0 to 15; `count` remainders of k bits must lie inside the payload
  uint32_t count = 0;
};
// The last position, and the end of the quotient plane.
struct GapOutput {
  bool complete = false;  // false: the quotient plane is cut off; the other fields mean nothing
  uint64_t end = 0;
  uint64_t last = 0;  // may be above any possible position; then `positions` mean nothing
};

// `positions` has room for `count` entries (at least 1). `scratch` has as many, for the portable
// variant.
GapOutput ReadGapsPortable(const GapInput& input, uint64_t* scratch, uint16_t* positions);
GapOutput ReadGapsAvx512(const GapInput& input, uint64_t* scratch, uint16_t* positions);

// Sets steps[i] to `plus` if bit begin + i of the payload is 0, to `minus` if it is 1, for `count`
// bits. They must lie inside the payload.
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
