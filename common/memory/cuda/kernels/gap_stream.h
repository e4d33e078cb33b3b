// Reads ascending numbers written as gaps (common/delta/FORMAT.md, "Gaps"), up to 32 at a time:
// positions, ranks, and the numbers of exceptions.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/payload_bits.h"
#include "common/memory/cuda/kernels/warp.h"

namespace dws::cuda::kernels {

// The current position in the planes. Uniform.
struct GapStream {
  uint32_t remainders;  // bit of the next number in each plane
  uint32_t quotients;
  uint32_t k;     // 0 to 15
  uint32_t next;  // the smallest possible value of the next number
};

// Reads `count` (1 to 32) numbers into the first lanes. The remainders must lie inside the payload.
// False: the quotients are cut off, or a number is not below `limit` (at most 65,536).
DWS_KERNEL bool NextNumbers(const Warp& warp, const PayloadBits& payload, uint32_t count,
                            uint32_t limit, GapStream& stream, Vec<uint32_t>& numbers) {
  Vec<uint32_t> ones;
  const uint32_t end = NextOnes(warp, payload, stream.quotients, count, ones);
  // The zeros are the sum of the quotients. The last number is at least that sum.
  if (end == kCutOff || end - stream.quotients - count >= limit) return false;
  Vec<uint32_t> remainders;
  if (stream.k != 0) {
    warp.lanes([&](uint32_t lane) {
      if (lane >= count) return;
      remainders[lane] = payload.SmallNumber(stream.remainders + lane * stream.k, stream.k);
    });
    remainders = RunningSum(warp, remainders);
  }
  // The zeros before the i-th one bit are the sum of the quotients up to it, so they need no scan.
  warp.lanes([&](uint32_t lane) {
    if (lane >= count) return;
    numbers[lane] = stream.next + lane + ((ones[lane] - lane) << stream.k) + remainders[lane];
  });
  // Numbers ascend, so the last one is the largest.
  const uint32_t last = warp.Broadcast(numbers, count - 1);
  if (last >= limit) return false;
  stream.remainders += count * stream.k;
  stream.quotients = end;
  stream.next = last + 1;
  return true;
}

}  // namespace dws::cuda::kernels
