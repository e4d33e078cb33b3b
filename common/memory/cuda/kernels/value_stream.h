// Reads small unsigned numbers in planes (common/delta/FORMAT.md, "Values"), up to 32 at a time.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/payload_bits.h"
#include "common/memory/cuda/kernels/warp.h"

namespace dws::cuda::kernels {

// A larger or equal quotient is written as this, and has an escape.
inline constexpr uint32_t kQuotientMax = 16;

struct ValueCoding {
  uint32_t width = 0;  // bits of a remainder
  bool fixed = false;  // no quotients, no escapes
  uint32_t escape_width = 0;
};

// `bits`: 0-6 width, 7 fixed, 8 and above escape width. False: not possible for elements of
// `element_bits` bits.
DWS_KERNEL bool UnpackValueCoding(uint32_t bits, uint32_t element_bits, ValueCoding& coding) {
  coding = {bits & 0x7F, (bits >> 7 & 1) != 0, bits >> 8};
  if (coding.fixed ? coding.escape_width != 0 : coding.width == element_bits) return false;
  return coding.width + coding.escape_width <= element_bits;
}

// The plane of escapes, and the current position in it.
struct EscapeStream {
  uint32_t at = 0;
  uint32_t width = 0;
  uint32_t count = 0;  // read so far
  Vec<uint64_t> seen;  // the bitwise or of the escapes that each lane has read
};

// Adds the escapes to quotients as read from their plane. Lanes without a quotient have 0. False:
// no encoder writes one of the quotients, an escape is cut off, or a sum exceeds 64 bits.
DWS_KERNEL bool NextEscapes(const Warp& warp, const PayloadBits& payload, EscapeStream& stream,
                            Vec<uint64_t>& quotients) {
  Vec<uint32_t> large;
  Vec<uint32_t> bad;
  warp.lanes([&](uint32_t lane) { large[lane] = quotients[lane] >= kQuotientMax ? 1 : 0; });
  const uint32_t escaped = warp.Ballot(large);
  if (escaped == 0) return true;
  const uint32_t count = PopCount(escaped);
  if (stream.width == 0 || stream.at + count * stream.width > payload.bits()) return false;
  warp.lanes([&](uint32_t lane) {
    if (large[lane] == 0) return;
    const uint32_t before = PopCount(Before(escaped, lane));
    const uint64_t escape = payload.Number(stream.at + before * stream.width, stream.width);
    stream.seen[lane] |= escape;
    bad[lane] = quotients[lane] > kQuotientMax || escape > ~uint64_t{0} - kQuotientMax ? 1 : 0;
    quotients[lane] += escape;
  });
  stream.at += count * stream.width;
  stream.count += count;
  return warp.Ballot(bad) == 0;
}

// Returns whether the plane, after its end was reached, has exactly the width that it needs.
DWS_KERNEL bool EscapesEnd(const Warp& warp, const EscapeStream& stream) {
  const uint32_t width = BitWidth(Union(warp, stream.seen));
  const uint32_t needed = stream.count == 0 ? 0 : width == 0 ? 1 : width;
  return needed == stream.width;
}

// The current position in all planes.
struct ValueStream {
  uint32_t remainders = 0;
  uint32_t quotients = 0;
  ValueCoding coding;
  EscapeStream escapes;
};

// Starts reading `count` values. The remainder plane must lie inside the payload. False: cut off.
DWS_KERNEL bool OpenValues(const Warp& warp, const PayloadBits& payload, uint32_t remainders,
                           uint32_t quotients, uint32_t count, ValueStream& stream) {
  stream.remainders = remainders;
  stream.quotients = quotients;
  stream.escapes.width = stream.coding.escape_width;
  if (stream.coding.escape_width == 0) return true;
  stream.escapes.at = SkipOnes(warp, payload, quotients, count);
  return stream.escapes.at != kCutOff;
}

// Reads `count` (1 to 32) quotients in unary from bit `at` on and moves `at` after them. False: cut
// off.
DWS_KERNEL bool NextQuotients(const Warp& warp, const PayloadBits& payload, uint32_t count,
                              uint32_t& at, Vec<uint64_t>& quotients) {
  Vec<uint32_t> ones;
  at = NextOnes(warp, payload, at, count, ones);
  if (at == kCutOff) return false;
  const Vec<uint32_t> below = warp.FromBelow(ones, 1);
  warp.lanes([&](uint32_t lane) {
    if (lane >= count) return;
    quotients[lane] = lane == 0 ? ones[lane] : ones[lane] - below[lane] - 1;
  });
  return true;
}

// Reads `count` (1 to 32) values into the first lanes. False: damaged.
DWS_KERNEL bool NextValues(const Warp& warp, const PayloadBits& payload, uint32_t count,
                           ValueStream& stream, Vec<uint64_t>& values) {
  const uint32_t width = stream.coding.width;
  warp.lanes([&](uint32_t lane) {
    values[lane] = lane < count ? payload.Number(stream.remainders + lane * width, width) : 0;
  });
  stream.remainders += count * width;
  if (stream.coding.fixed) return true;
  Vec<uint64_t> quotients;
  if (!NextQuotients(warp, payload, count, stream.quotients, quotients)) return false;
  if (!NextEscapes(warp, payload, stream.escapes, quotients)) return false;
  Vec<uint32_t> bad;
  warp.lanes([&](uint32_t lane) {
    bad[lane] = quotients[lane] > ~uint64_t{0} >> width ? 1 : 0;
    values[lane] |= quotients[lane] << width;
  });
  return warp.Ballot(bad) == 0;
}

// Returns the end of the planes, after all values were read; kCutOff: no encoder writes such
// planes.
DWS_KERNEL uint32_t ValuesEnd(const Warp& warp, const ValueStream& stream) {
  if (!EscapesEnd(warp, stream.escapes)) return kCutOff;
  return stream.escapes.width == 0 ? stream.quotients : stream.escapes.at;
}

}  // namespace dws::cuda::kernels
