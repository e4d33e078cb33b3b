// The digest of weights, a word at a time, with the constants of common/model/digest/digest.h.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/model/digest/digest.h"

namespace dws::cuda::kernels {

DWS_KERNEL uint64_t FinishMix(uint64_t x) {
  constexpr uint64_t kFactor = internal::kFinishFactor;
  x ^= x >> 32;
  x *= kFactor;
  x ^= x >> 32;
  x *= kFactor;
  x ^= x >> 32;
  return x;
}

// The part of each lane's mix that depends on the word's number in its tensor.
struct IndexTerms {
  uint64_t lane0 = 0;
  uint64_t lane1 = 0;
};

DWS_KERNEL IndexTerms TermsOf(uint64_t index) {
  constexpr uint64_t kIndex0 = internal::kIndexFactor[0];
  constexpr uint64_t kIndex1 = internal::kIndexFactor[1];
  constexpr uint64_t kOffset0 = internal::kOffset[0];
  constexpr uint64_t kOffset1 = internal::kOffset[1];
  return {kIndex0 * index + kOffset0, kIndex1 * index + kOffset1};
}

// The terms of the word `count` words later. Needs no multiplication if `count` is a constant.
DWS_KERNEL IndexTerms Further(const IndexTerms& terms, uint32_t count) {
  constexpr uint64_t kIndex0 = internal::kIndexFactor[0];
  constexpr uint64_t kIndex1 = internal::kIndexFactor[1];
  return {terms.lane0 + kIndex0 * count, terms.lane1 + kIndex1 * count};
}

// Adds a word of the tensor to `sum`.
DWS_KERNEL void AddWord(const IndexTerms& terms, uint64_t word, KernelDigest& sum) {
  constexpr uint64_t kWord0 = internal::kWordFactor[0];
  constexpr uint64_t kWord1 = internal::kWordFactor[1];
  sum.lane0 += FinishMix(kWord0 * word + terms.lane0);
  sum.lane1 += FinishMix(kWord1 * word + terms.lane1);
}

// Adds the difference that a change of that word makes to the digest.
DWS_KERNEL void AddChange(const IndexTerms& terms, uint64_t before, uint64_t after,
                          KernelDigest& sum) {
  KernelDigest minus;
  AddWord(terms, before, minus);
  AddWord(terms, after, sum);
  sum.lane0 -= minus.lane0;
  sum.lane1 -= minus.lane1;
}

// The sum over all lanes.
DWS_KERNEL KernelDigest SumDigests(const Warp& warp, const Vec<KernelDigest>& sums) {
  Vec<uint64_t> lane0;
  Vec<uint64_t> lane1;
  warp.lanes([&](uint32_t lane) {
    lane0[lane] = sums[lane].lane0;
    lane1[lane] = sums[lane].lane1;
  });
  return {Sum(warp, lane0), Sum(warp, lane1)};
}

// Adds `digest` to entry `result` of the KernelDigest[] at `digests`.
DWS_KERNEL void AddDigest(const Warp& warp, uint64_t digests, uint32_t result,
                          const KernelDigest& digest) {
  warp.lanes([&](uint32_t lane) {
    if (lane >= 2) return;
    AtomicAdd(digests + uint64_t{result} * sizeof(KernelDigest) + lane * sizeof(uint64_t),
              lane == 0 ? digest.lane0 : digest.lane1);
  });
}

}  // namespace dws::cuda::kernels
