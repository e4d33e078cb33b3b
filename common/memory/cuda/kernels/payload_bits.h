// Reads planes of bits inside one payload (common/delta/FORMAT.md, "Bits"): numbers of fixed width
// and unary numbers. The bytes may be arbitrary: nothing beyond 16 bytes after the payload is read.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/warp.h"

namespace dws::cuda::kernels {

// Payloads are smaller than a frame, so bit numbers, and sums of a few of them, fit 32 bits.
inline constexpr uint32_t kPayloadBytesMax = 1U << 20;

// The end of a plane that is cut off.
inline constexpr uint32_t kCutOff = 0xFFFFFFFF;

// Uniform.
class PayloadBits {
 public:
  // `size_bytes` at most kPayloadBytesMax.
  DWS_KERNEL PayloadBits(uint64_t address, uint32_t size_bytes)
      : words_(address / 4 * 4),
        skew_(static_cast<uint32_t>(address % 4) * 8),
        bits_(size_bytes * 8) {}

  DWS_KERNEL uint32_t bits() const { return bits_; }

  // 64 bits from bit `at` (at most bits()) on. Those after the payload have no meaning.
  DWS_KERNEL uint64_t Word(uint32_t at) const {
    const uint32_t bit = at + skew_;
    const uint64_t address = words_ + uint64_t{bit / 32} * 4;
    const auto middle = Load<uint32_t>(address + 4);
    const uint32_t low = FunnelRight(Load<uint32_t>(address), middle, bit);
    return uint64_t{FunnelRight(middle, Load<uint32_t>(address + 8), bit)} << 32 | low;
  }
  // Returns 32 bits.
  DWS_KERNEL uint32_t HalfWord(uint32_t at) const {
    const uint32_t bit = at + skew_;
    const uint64_t address = words_ + uint64_t{bit / 32} * 4;
    return FunnelRight(Load<uint32_t>(address), Load<uint32_t>(address + 4), bit);
  }

  // The number of `width` (at most 64) bits at bit `at`. The bits must lie inside the payload.
  DWS_KERNEL uint64_t Number(uint32_t at, uint32_t width) const {
    return width == 0 ? 0 : Word(at) & LowBits(width);
  }

  // Like Number, for a `width` of at most 16.
  DWS_KERNEL uint32_t SmallNumber(uint32_t at, uint32_t width) const {
    return HalfWord(at) & ((1U << width) - 1);
  }

  // Returns whether a payload whose last plane ends at bit `end` has exactly the bytes that it
  // needs, padded with zero bits.
  DWS_KERNEL bool EndsCleanly(uint32_t end) const {
    if (end > bits_ || bits_ - end >= 8) return false;
    return Number(end, bits_ - end) == 0;
  }

 private:
  uint64_t words_;  // address of the aligned 4 bytes with the first bit
  uint32_t skew_;   // bits of that word before the first bit
  uint32_t bits_;
};

// Returns the number of the n-th (from 0) one bit in `word`, which has more than n one bits.
DWS_KERNEL uint32_t SelectOne(uint32_t word, uint32_t n) {
  uint32_t at = 0;
  DWS_UNROLL
  for (uint32_t width = 16; width != 0; width /= 2) {
    const uint32_t ones = PopCount(word & ((1U << width) - 1));
    if (n >= ones) {
      n -= ones;
      word >>= width;
      at += width;
    }
  }
  return at;
}
DWS_KERNEL uint32_t SelectOne(uint64_t word, uint32_t n) {
  const auto low = static_cast<uint32_t>(word);
  const uint32_t in_low = PopCount(low);
  const bool upper = n >= in_low;
  return (upper ? 32 : 0) +
         SelectOne(upper ? static_cast<uint32_t>(word >> 32) : low, upper ? n - in_low : n);
}

// Finds the first `count` (1 to 32) one bits from bit `begin` on: ones[i] is the number of bits
// between `begin` and the i-th. Returns the bit after the last of them, or kCutOff if the payload
// has fewer, or if it has more zeros between them than the gaps of a block can have.
DWS_KERNEL uint32_t NextOnes(const Warp& warp, const PayloadBits& payload, uint32_t begin,
                             uint32_t count, Vec<uint32_t>& ones) {
  constexpr uint32_t kBitsMax = 2 * 65'536;  // the gaps of a whole block have fewer
  uint32_t found = 0;
  for (uint32_t base = 0; base < kBitsMax; base += 128) {
    const uint32_t at = begin + base;
    if (at >= payload.bits()) return kCutOff;
    // All lanes load the same two words: 32 numbers rarely need more.
    const uint64_t first = payload.Word(at);
    const uint64_t second = at + 64 < payload.bits() ? payload.Word(at + 64) : 0;
    const uint32_t in_first = PopCount(first);
    const uint32_t here = in_first + PopCount(second);
    warp.lanes([&](uint32_t lane) {
      const uint32_t number = lane - found;
      if (lane < found || number >= here) return;
      const bool further = number >= in_first;
      ones[lane] = base + (further ? 64 : 0) +
                   SelectOne(further ? second : first, further ? number - in_first : number);
    });
    found += here;
    if (found >= count) {
      const uint32_t end = begin + warp.Broadcast(ones, count - 1) + 1;
      return end <= payload.bits() ? end : kCutOff;
    }
  }
  return kCutOff;
}

// The bit after the first `count` one bits from bit `begin` on; kCutOff when the payload has fewer.
DWS_KERNEL uint32_t SkipOnes(const Warp& warp, const PayloadBits& payload, uint32_t begin,
                             uint32_t count) {
  if (count == 0) return begin;
  for (; begin < payload.bits(); begin += Warp::kLanes * 64) {
    Vec<uint64_t> words;
    Vec<uint32_t> ones;
    warp.lanes([&](uint32_t lane) {
      const uint32_t at = begin + lane * 64;
      if (at >= payload.bits()) return;
      words[lane] = payload.Word(at) & LowBits(payload.bits() - at);
      ones[lane] = PopCount(words[lane]);
    });
    const Vec<uint32_t> sums = RunningSum(warp, ones);
    const uint32_t all = warp.Broadcast(sums, Warp::kLanes - 1);
    if (all < count) {
      count -= all;
      continue;
    }
    Vec<uint32_t> reached;
    warp.lanes([&](uint32_t lane) { reached[lane] = sums[lane] >= count ? 1 : 0; });
    const uint32_t last = LowestOne(warp.Ballot(reached));
    const uint32_t before = warp.Broadcast(sums, last) - warp.Broadcast(ones, last);
    const uint64_t word = warp.Broadcast(words, last);
    return begin + last * 64 + SelectOne(word, count - 1 - before) + 1;
  }
  return kCutOff;
}

}  // namespace dws::cuda::kernels
