// The additive digest of weights, 128 bits (specified in common/delta/FORMAT.md, "Digest").
//
// A tensor's canonical bytes are little-endian 8-byte words w_i, numbered consecutively through all
// blocks of all its slices; each block's tail is padded with zeros. D = sum over i of mix(i, w_i),
// lane by lane, modulo 2^64. So a digest can be updated from the changed words alone, blocks add up
// to slices and slices to tensors. It guards against faults, not against a forger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/bytes.h"

namespace dws {

// 128 bits over bytes at known positions. Digests of disjoint parts add up to that of the whole.
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
// A, B and S of the two lanes, and M, as FORMAT.md names them.
inline constexpr uint64_t kWordFactor[2] = {0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93};
inline constexpr uint64_t kIndexFactor[2] = {0xC2B2AE3D27D4EB4F, 0xA0761D6478BD642E};
inline constexpr uint64_t kOffset[2] = {0x243F6A8885A308D3, 0x13198A2E03707344};
inline constexpr uint64_t kFinishFactor = 0xD6E8FEB86659FD93;

constexpr uint64_t Finish(uint64_t x) {
  x ^= x >> 32;
  x *= kFinishFactor;
  x ^= x >> 32;
  x *= kFinishFactor;
  x ^= x >> 32;
  return x;
}
constexpr uint64_t MixLane(size_t lane, uint64_t index, uint64_t word) {
  return Finish(kWordFactor[lane] * word + kIndexFactor[lane] * index + kOffset[lane]);
}
}  // namespace internal

// What word number `index` with value `word` adds to the digest.
inline Digest MixWord(uint64_t index, uint64_t word) {
  return {.lane0 = internal::MixLane(0, index, word), .lane1 = internal::MixLane(1, index, word)};
}

// Returns the digest of `bytes` (one block, or consecutive full blocks) whose first word has number
// `first_word`; a tail shorter than a word is padded with zeros.
Digest DigestBytes(ByteSpan bytes, uint64_t first_word);

// Copies `from` to `to`, of one size, which do not overlap, and returns the digest of the copy, as
// DigestBytes does, in one pass past the cache: for megabytes that nobody reads soon. `from` may
// change meanwhile: the digest is that of the copy, whatever it got. The copy is visible to other
// threads when the function returns, and not before the caller's earlier stores.
Digest CopyAndDigest(MutableByteSpan to, ByteSpan from, uint64_t first_word);

// The words of one block that changed: parallel arrays; `numbers` count from the block's first
// word.
struct ChangedWords {
  const uint16_t* numbers = nullptr;
  const uint64_t* before = nullptr;
  const uint64_t* after = nullptr;
  size_t count = 0;
};

// Returns by how much the digest of a block whose first word has number `first_word` changes: after
// minus before.
Digest DigestDifference(const ChangedWords& changed, uint64_t first_word);

}  // namespace dws
