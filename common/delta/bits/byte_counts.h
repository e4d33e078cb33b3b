// How often each byte occurs. Bytes that follow each other are often the same; they are counted in
// turns, so that an increment need not wait for the one before it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dws {

// For at most 2^16 - 1 bytes a turn.
class ByteCounts {
 public:
  static constexpr size_t kTurns = 4;

  // `turn`: any number, best counted up.
  void Add(size_t turn, uint8_t byte) { ++counts_[turn % kTurns][byte]; }

  uint32_t Of(size_t byte) const {
    return uint32_t{counts_[0][byte]} + counts_[1][byte] + counts_[2][byte] + counts_[3][byte];
  }

 private:
  std::array<std::array<uint16_t, 256>, kTurns> counts_{};
};

}  // namespace dws
