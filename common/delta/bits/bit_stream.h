// Bit planes: writes numbers one after the other into bytes, lowest bit first, and reads them back
// a word at a time (FORMAT.md, "Bits"). Readers accept arbitrary bytes: they never touch memory
// outside the span they are given.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "common/base/bytes.h"
#include "common/delta/bits/element.h"

namespace dws {

// Appends bits. The buffer needs room for all of them rounded up to bytes, plus kSlackBytes that
// are overwritten with zeros. Does not own the buffer. Threads: one at a time.
class BitWriter {
 public:
  static constexpr uint32_t kSlackBytes = 8;
  static constexpr uint32_t kPutBitsMax = 56;

  explicit BitWriter(std::byte* to) : at_(to) {}

  // `value` is below 2^width, width at most kPutBitsMax. Without a branch: stores a whole word, and
  // the next call overwrites its unused bytes.
  void Put(uint64_t value, uint32_t width) {
    pending_ |= value << used_;
    StoreLe(at_, pending_);
    used_ += width;
    at_ += used_ / 8;
    pending_ >>= used_ & ~7u;
    used_ &= 7;
  }
  // Like Put, for widths up to 64.
  void PutWide(uint64_t value, uint32_t width) {
    if (width <= kPutBitsMax) {
      Put(value, width);
    } else {
      Put(value & LowBits(32), 32);
      Put(value >> 32, width - 32);
    }
  }
  // Appends `zeros` zero bits and a one bit.
  void PutUnary(uint64_t zeros) {
    for (; zeros >= kPutBitsMax; zeros -= kPutBitsMax) Put(0, kPutBitsMax);
    Put(uint64_t{1} << zeros, static_cast<uint32_t>(zeros) + 1);
  }
  // The end of the bytes written; the last one is padded with zeros.
  std::byte* end() const { return at_ + (used_ != 0 ? 1 : 0); }

 private:
  std::byte* at_;
  uint64_t pending_ = 0;  // the `used_` bits that do not fill a byte yet
  uint32_t used_ = 0;     // below 8
};

// At least 57 bits from bit `bit` on, lowest first; zeros past the end of `bytes`.
inline uint64_t LoadBits57(ByteSpan bytes, uint64_t bit) {
  const uint64_t at = bit / 8;
  if (at + 8 <= bytes.size()) return LoadLe<uint64_t>(bytes.data() + at) >> (bit % 8);
  uint64_t word = 0;
  if (at < bytes.size()) std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  return word >> (bit % 8);
}

// The number of `width` (at most 64) bits at bit `bit`.
inline uint64_t LoadBits(ByteSpan bytes, uint64_t bit, uint32_t width) {
  if (width <= 57) return LoadBits57(bytes, bit) & LowBits(width);
  return (LoadBits57(bytes, bit) & LowBits(32)) |
         (LoadBits57(bytes, bit + 32) & LowBits(width - 32)) << 32;
}

// Reads `count` numbers of `width` bits each from bit `begin` on. The plane must lie inside
// `bytes`: the caller checks that.
template <typename Out>
void ReadPlane(ByteSpan bytes, uint64_t begin, uint32_t width, uint32_t count, Out* out) {
  uint32_t i = 0;
  uint64_t bit = begin;
  if (width <= 57) {
    const uint64_t mask = LowBits(width);
    for (; i < count && bit / 8 + 8 <= bytes.size(); ++i, bit += width) {
      out[i] = static_cast<Out>((LoadLe<uint64_t>(bytes.data() + bit / 8) >> (bit % 8)) & mask);
    }
  }
  for (; i < count; ++i, bit += width) out[i] = static_cast<Out>(LoadBits(bytes, bit, width));
}

// Finds the first `count` one bits from bit `begin` on: ones[i] is the number of bits between
// `begin` and the i-th. Returns the bit after the last of them; nullopt when `bytes` has fewer.
template <typename Out>
std::optional<uint64_t> SelectOnes(ByteSpan bytes, uint64_t begin, uint32_t count, Out* ones) {
  constexpr uint32_t kStep = 56;  // whole bytes, so the shift of every load is the same
  uint32_t found = 0;
  for (uint64_t base = 0; found < count; base += kStep) {
    if ((begin + base) / 8 >= bytes.size()) return std::nullopt;
    uint64_t word = LoadBits57(bytes, begin + base) & LowBits(kStep);
    for (; word != 0 && found < count; word &= word - 1) {
      ones[found++] = static_cast<Out>(base + static_cast<uint32_t>(std::countr_zero(word)));
    }
  }
  return count == 0 ? begin : begin + ones[count - 1] + 1;
}

// Returns whether a payload whose last plane ends at bit `end` has exactly the bytes that it needs,
// padded with zero bits.
inline bool EndsCleanly(ByteSpan bytes, uint64_t end) {
  if (bytes.size() != CeilDiv(end, 8)) return false;
  return end % 8 == 0 || (static_cast<uint32_t>(bytes.back()) >> (end % 8)) == 0;
}

}  // namespace dws
