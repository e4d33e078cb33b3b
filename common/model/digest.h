// The additive digest of weights, 128 bits (specified in common/delta/FORMAT.md, "Digest").
//
// A tensor's canonical bytes are little-endian 8-byte words w_i, numbered through all blocks of all
// its slices; each block's tail is padded with zeros. D = sum over i of mix(i, w_i), lane by lane,
// modulo 2^64. So a digest can be updated from changed words alone, blocks sum to slices and slices
// to tensors. It guards against faults, not against a forger.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/bytes.h"

namespace dws {

struct Digest {
  uint64_t lane0 = 0;
  uint64_t lane1 = 0;

  Digest& operator+=(const Digest& other) {
    lane0 += other.lane0;
    lane1 += other.lane1;
    return *this;
  }
  Digest& operator-=(const Digest& other) {
    lane0 -= other.lane0;
    lane1 -= other.lane1;
    return *this;
  }
  friend Digest operator+(Digest a, const Digest& b) { return a += b; }
  friend Digest operator-(Digest a, const Digest& b) { return a -= b; }
  friend bool operator==(const Digest&, const Digest&) = default;
};

// 32 lowercase hex digits, lane 0 first.
std::string ToString(const Digest& digest);

namespace internal {
inline uint64_t Finish(uint64_t x) {
  constexpr uint64_t kM = 0xD6E8FEB86659FD93;
  x ^= x >> 32;
  x *= kM;
  x ^= x >> 32;
  x *= kM;
  x ^= x >> 32;
  return x;
}
}  // namespace internal

// What word number `index` with value `word` adds to the digest.
inline Digest MixWord(uint64_t index, uint64_t word) {
  return {.lane0 = internal::Finish(0x9E3779B97F4A7C15 * word + 0xC2B2AE3D27D4EB4F * index +
                                    0x243F6A8885A308D3),
          .lane1 = internal::Finish(0xD6E8FEB86659FD93 * word + 0xA0761D6478BD642E * index +
                                    0x13198A2E03707344)};
}

// The digest of `bytes` (of one block, or of consecutive full blocks) whose first word has number
// `first_word`; a tail shorter than a word is padded with zeros.
Digest DigestBytes(ByteSpan bytes, uint64_t first_word);

}  // namespace dws
