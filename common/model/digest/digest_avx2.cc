// Four words at a time. AVX2 cannot multiply 64 bits by 64, so three 32-bit products make up one.
#include <cstring>

#include "common/base/instruction_set.h"
#include "common/base/intrinsics.h"
#include "common/model/digest/digest_kernels.h"

#if defined(__x86_64__)

namespace dws::digest_kernels {
namespace {

constexpr size_t kLanes = 4;

DWS_TARGET_AVX2 inline __m256i Set(uint64_t value) {
  return _mm256_set1_epi64x(static_cast<int64_t>(value));
}

// A factor, and the same with the upper halves moved to the lower ones.
struct Factor {
  __m256i whole;
  __m256i high;
};

DWS_TARGET_AVX2 inline Factor MakeFactor(uint64_t value) {
  return {.whole = Set(value), .high = Set(value >> 32)};
}

// x * factor. `x_high` has the upper halves of x in its lower halves.
DWS_TARGET_AVX2 inline __m256i Multiply(__m256i x, __m256i x_high, const Factor& factor) {
  const __m256i cross =
      _mm256_add_epi64(_mm256_mul_epu32(x, factor.high), _mm256_mul_epu32(x_high, factor.whole));
  return _mm256_add_epi64(_mm256_mul_epu32(x, factor.whole), _mm256_slli_epi64(cross, 32));
}

DWS_TARGET_AVX2 inline __m256i Finish(__m256i x, const Factor& m) {
  // x ^ (x >> 32) does not change the upper half.
  __m256i high = _mm256_srli_epi64(x, 32);
  x = Multiply(_mm256_xor_si256(x, high), high, m);
  high = _mm256_srli_epi64(x, 32);
  x = Multiply(_mm256_xor_si256(x, high), high, m);
  return _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
}

DWS_TARGET_AVX2 inline __m256i Mix(__m256i word, const Factor& a, __m256i index, const Factor& m) {
  const __m256i product = Multiply(word, _mm256_srli_epi64(word, 32), a);
  return Finish(_mm256_add_epi64(product, index), m);
}

DWS_TARGET_AVX2 inline uint64_t Sum(__m256i x) {
  const __m128i pairs = _mm_add_epi64(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  return static_cast<uint64_t>(_mm_extract_epi64(pairs, 0)) +
         static_cast<uint64_t>(_mm_extract_epi64(pairs, 1));
}

// The part of the mix that depends on the word's number: B * number + S.
DWS_TARGET_AVX2 inline __m256i Index(__m256i number, size_t lane) {
  const Factor b = MakeFactor(internal::kIndexFactor[lane]);
  return _mm256_add_epi64(Multiply(number, _mm256_srli_epi64(number, 32), b),
                          Set(internal::kOffset[lane]));
}

// kCopies: also copies the words to `to`, past the cache.
template <bool kCopies>
DWS_TARGET_AVX2 Digest Run(const std::byte* words, std::byte* to, uint64_t count,
                           uint64_t first_word) {
  // Stores past the cache may overtake earlier stores, such as a mark that the bytes are changing.
  if constexpr (kCopies) _mm_sfence();
  const Factor a0 = MakeFactor(internal::kWordFactor[0]);
  const Factor a1 = MakeFactor(internal::kWordFactor[1]);
  const Factor m = MakeFactor(internal::kFinishFactor);
  const __m256i number = _mm256_add_epi64(Set(first_word), _mm256_set_epi64x(3, 2, 1, 0));
  __m256i index0 = Index(number, 0);
  __m256i index1 = Index(number, 1);
  const __m256i step0 = Set(internal::kIndexFactor[0] * kLanes);
  const __m256i step1 = Set(internal::kIndexFactor[1] * kLanes);
  __m256i sum0 = _mm256_setzero_si256();
  __m256i sum1 = _mm256_setzero_si256();
  uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + i * 8));
    if constexpr (kCopies) _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i * 8), word);
    sum0 = _mm256_add_epi64(sum0, Mix(word, a0, index0, m));
    sum1 = _mm256_add_epi64(sum1, Mix(word, a1, index1, m));
    index0 = _mm256_add_epi64(index0, step0);
    index1 = _mm256_add_epi64(index1, step1);
  }
  if constexpr (kCopies) {
    std::memcpy(to + i * 8, words + i * 8, (count - i) * 8);
    _mm_sfence();
    words = to;
  }
  return Digest{.lane0 = Sum(sum0), .lane1 = Sum(sum1)} +
         MixRunPortable(words + i * 8, count - i, first_word + i);
}

}  // namespace

DWS_TARGET_AVX2 Digest MixRunAvx2(const std::byte* words, uint64_t count, uint64_t first_word) {
  return Run<false>(words, nullptr, count, first_word);
}

DWS_TARGET_AVX2 Digest CopyRunAvx2(const std::byte* words, std::byte* to, uint64_t count,
                                   uint64_t first_word) {
  return Run<true>(words, to, count, first_word);
}

DWS_TARGET_AVX2 Digest MixChangesAvx2(const ChangedWords& changed, uint64_t first_word) {
  const Factor a0 = MakeFactor(internal::kWordFactor[0]);
  const Factor a1 = MakeFactor(internal::kWordFactor[1]);
  const Factor m = MakeFactor(internal::kFinishFactor);
  const __m256i first = Set(first_word);
  __m256i sum0 = _mm256_setzero_si256();
  __m256i sum1 = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + kLanes <= changed.count; i += kLanes) {
    const __m256i number = _mm256_add_epi64(
        first, _mm256_cvtepu16_epi64(
                   _mm_loadl_epi64(reinterpret_cast<const __m128i*>(changed.numbers + i))));
    const __m256i before = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(changed.before + i));
    const __m256i after = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(changed.after + i));
    const __m256i index0 = Index(number, 0);
    const __m256i index1 = Index(number, 1);
    sum0 = _mm256_add_epi64(
        sum0, _mm256_sub_epi64(Mix(after, a0, index0, m), Mix(before, a0, index0, m)));
    sum1 = _mm256_add_epi64(
        sum1, _mm256_sub_epi64(Mix(after, a1, index1, m), Mix(before, a1, index1, m)));
  }
  const ChangedWords rest{.numbers = changed.numbers + i,
                          .before = changed.before + i,
                          .after = changed.after + i,
                          .count = changed.count - i};
  return Digest{.lane0 = Sum(sum0), .lane1 = Sum(sum1)} + MixChangesPortable(rest, first_word);
}

}  // namespace dws::digest_kernels
#endif
