// Eight words at a time: AVX-512DQ multiplies 64 bits by 64.
#include <cstring>

#include "common/base/instruction_set.h"
#include "common/base/intrinsics.h"
#include "common/model/digest/digest_kernels.h"

#if defined(__x86_64__)

namespace dws::digest_kernels {
namespace {

constexpr size_t kLanes = 8;

DWS_TARGET_AVX512 inline __m512i Set(uint64_t value) {
  return _mm512_set1_epi64(static_cast<int64_t>(value));
}

DWS_TARGET_AVX512 inline __m512i Finish(__m512i x, __m512i m) {
  x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 32));
  x = _mm512_mullo_epi64(x, m);
  x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 32));
  x = _mm512_mullo_epi64(x, m);
  return _mm512_xor_si512(x, _mm512_srli_epi64(x, 32));
}

// Adds unsigned numbers, which may overflow: _mm512_reduce_add_epi64 adds signed ones.
DWS_TARGET_AVX512 inline uint64_t SumOfLanes(__m512i x) {
  alignas(64) uint64_t lanes[kLanes];
  _mm512_store_si512(lanes, x);
  uint64_t sum = 0;
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}

// kCopies: also copies the words to `to`, past the cache.
template <bool kCopies>
DWS_TARGET_AVX512 Digest Run(const std::byte* words, std::byte* to, uint64_t count,
                             uint64_t first_word) {
  // Stores past the cache may overtake earlier stores, such as a mark that the bytes are changing.
  if constexpr (kCopies) _mm_sfence();
  const __m512i a0 = Set(internal::kWordFactor[0]);
  const __m512i a1 = Set(internal::kWordFactor[1]);
  const __m512i m = Set(internal::kFinishFactor);
  // The part of the mix that depends on the word's number, for the next eight words.
  const __m512i number =
      _mm512_add_epi64(Set(first_word), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
  __m512i index0 = _mm512_add_epi64(_mm512_mullo_epi64(number, Set(internal::kIndexFactor[0])),
                                    Set(internal::kOffset[0]));
  __m512i index1 = _mm512_add_epi64(_mm512_mullo_epi64(number, Set(internal::kIndexFactor[1])),
                                    Set(internal::kOffset[1]));
  const __m512i step0 = Set(internal::kIndexFactor[0] * kLanes);
  const __m512i step1 = Set(internal::kIndexFactor[1] * kLanes);
  __m512i sum0 = _mm512_setzero_si512();
  __m512i sum1 = _mm512_setzero_si512();
  uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m512i word = _mm512_loadu_si512(words + i * 8);
    if constexpr (kCopies) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i * 8), word);
    const __m512i x0 = _mm512_add_epi64(_mm512_mullo_epi64(word, a0), index0);
    const __m512i x1 = _mm512_add_epi64(_mm512_mullo_epi64(word, a1), index1);
    sum0 = _mm512_add_epi64(sum0, Finish(x0, m));
    sum1 = _mm512_add_epi64(sum1, Finish(x1, m));
    index0 = _mm512_add_epi64(index0, step0);
    index1 = _mm512_add_epi64(index1, step1);
  }
  const Digest sum{.lane0 = SumOfLanes(sum0), .lane1 = SumOfLanes(sum1)};
  if constexpr (kCopies) {
    std::memcpy(to + i * 8, words + i * 8, (count - i) * 8);
    _mm_sfence();
    words = to;
  }
  return sum + MixRunPortable(words + i * 8, count - i, first_word + i);
}

}  // namespace

DWS_TARGET_AVX512 Digest MixRunAvx512(const std::byte* words, uint64_t count, uint64_t first_word) {
  return Run<false>(words, nullptr, count, first_word);
}

DWS_TARGET_AVX512 Digest CopyRunAvx512(const std::byte* words, std::byte* to, uint64_t count,
                                       uint64_t first_word) {
  return Run<true>(words, to, count, first_word);
}

DWS_TARGET_AVX512 Digest MixChangesAvx512(const ChangedWords& changed, uint64_t first_word) {
  const __m512i a0 = Set(internal::kWordFactor[0]);
  const __m512i a1 = Set(internal::kWordFactor[1]);
  const __m512i b0 = Set(internal::kIndexFactor[0]);
  const __m512i b1 = Set(internal::kIndexFactor[1]);
  const __m512i first0 = Set(internal::kIndexFactor[0] * first_word + internal::kOffset[0]);
  const __m512i first1 = Set(internal::kIndexFactor[1] * first_word + internal::kOffset[1]);
  const __m512i m = Set(internal::kFinishFactor);
  __m512i sum0 = _mm512_setzero_si512();
  __m512i sum1 = _mm512_setzero_si512();
  for (size_t i = 0; i < changed.count; i += kLanes) {
    const size_t left = changed.count - i;
    const __mmask8 some = left >= kLanes ? 0xFF : static_cast<__mmask8>((1U << left) - 1);
    const __m512i number = _mm512_cvtepu16_epi64(_mm_maskz_loadu_epi16(some, changed.numbers + i));
    const __m512i before = _mm512_maskz_loadu_epi64(some, changed.before + i);
    const __m512i after = _mm512_maskz_loadu_epi64(some, changed.after + i);
    const __m512i index0 = _mm512_add_epi64(_mm512_mullo_epi64(number, b0), first0);
    const __m512i index1 = _mm512_add_epi64(_mm512_mullo_epi64(number, b1), first1);
    const __m512i old0 = Finish(_mm512_add_epi64(_mm512_mullo_epi64(before, a0), index0), m);
    const __m512i old1 = Finish(_mm512_add_epi64(_mm512_mullo_epi64(before, a1), index1), m);
    const __m512i new0 = Finish(_mm512_add_epi64(_mm512_mullo_epi64(after, a0), index0), m);
    const __m512i new1 = Finish(_mm512_add_epi64(_mm512_mullo_epi64(after, a1), index1), m);
    // In lanes past the end, before and after are equal, so they add nothing.
    sum0 = _mm512_add_epi64(sum0, _mm512_sub_epi64(new0, old0));
    sum1 = _mm512_add_epi64(sum1, _mm512_sub_epi64(new1, old1));
  }
  return {.lane0 = SumOfLanes(sum0), .lane1 = SumOfLanes(sum1)};
}

}  // namespace dws::digest_kernels
#endif
