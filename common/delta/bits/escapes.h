// Quotients that are too large for unary (FORMAT.md, "Values"): the quotient plane has a limit for
// them, and what they are above it stands in a plane of its own, each as wide as the widest. Shared
// by value codings and the sizes of hot changes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include "common/base/bytes.h"
#include "common/delta/bits/bit_stream.h"

namespace dws {

// A quotient of this or more is written as this.
inline constexpr uint32_t kQuotientMax = 16;

// Bits of each escape, when all of them or-ed, or the largest, is `escapes`.
inline uint32_t EscapeWidth(uint64_t escapes) {
  return static_cast<uint32_t>(std::max(1, static_cast<int>(std::bit_width(escapes))));
}

// Reads the escapes of one plane, in order.
class EscapeReader {
 public:
  // The plane begins at bit `begin`; `width` 0: there is none.
  EscapeReader(ByteSpan payload, uint64_t begin, uint32_t width)
      : payload_(payload), begin_(begin), end_(begin), width_(width) {}

  // Makes of a quotient as its plane has it what it stands for. False: none that is written, or its
  // escape is cut off.
  bool Complete(uint64_t& quotient) {
    if (quotient < kQuotientMax) return true;
    if (quotient > kQuotientMax || width_ == 0) return false;
    if (end_ + width_ > payload_.size() * 8) return false;
    const uint64_t escape = LoadBits(payload_, end_, width_);
    end_ += width_;
    seen_ |= escape;
    if (escape > ~uint64_t{0} - quotient) return false;
    quotient += escape;
    return true;
  }

  // Where the plane ends; nullopt: it is wider than it has to be.
  std::optional<uint64_t> End() const {
    const uint32_t needed = end_ == begin_ ? 0 : EscapeWidth(seen_);
    if (needed != width_) return std::nullopt;
    return end_;
  }

 private:
  const ByteSpan payload_;
  const uint64_t begin_;
  uint64_t end_;  // of what has been read
  const uint32_t width_;
  uint64_t seen_ = 0;  // all escapes or-ed
};

}  // namespace dws
