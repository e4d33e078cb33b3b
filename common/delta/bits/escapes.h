// Quotients that are too large for unary (FORMAT.md, "Values"): the quotient plane has the limit,
// and a separate plane has how much each is above the limit, all in the width of the largest. Used
// by value codings and by the sizes of hot changes.
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

// Returns the bits of each escape. `escapes` is the bitwise or of all escapes, or the largest one.
inline uint32_t EscapeWidth(uint64_t escapes) {
  return static_cast<uint32_t>(std::max(1, static_cast<int>(std::bit_width(escapes))));
}

// Reads the escapes of one plane, in order.
class EscapeReader {
 public:
  // The plane begins at bit `begin`; `width` 0: there is no plane.
  EscapeReader(ByteSpan payload, uint64_t begin, uint32_t width)
      : payload_(payload), begin_(begin), end_(begin), width_(width) {}

  // Adds the escape to a quotient read from the quotient plane, if it has one. Returns false if no
  // encoder writes this quotient, if its escape is cut off, or if the sum exceeds 64 bits.
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

  // The end of the plane; nullopt: its width is larger than needed.
  std::optional<uint64_t> End() const {
    const uint32_t needed = end_ == begin_ ? 0 : EscapeWidth(seen_);
    if (needed != width_) return std::nullopt;
    return end_;
  }

 private:
  const ByteSpan payload_;
  const uint64_t begin_;
  uint64_t end_;  // of the part that was read
  const uint32_t width_;
  uint64_t seen_ = 0;  // the bitwise or of all escapes
};

}  // namespace dws
