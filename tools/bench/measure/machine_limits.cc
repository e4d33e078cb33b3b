#include "tools/bench/measure/machine_limits.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/instruction_set.h"

namespace dws::bench {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kSharesPerWorker = 8;
constexpr std::array<uint32_t, 6> kDistances = {8, 16, 24, 32, 48, 96};

// Returns whether any byte is not zero. `size` is a multiple of 256.
DWS_TARGET_AVX512 uint64_t ReadAvx512(const std::byte* from, size_t size) {
  __m512i a = _mm512_setzero_si512();
  __m512i b = a;
  __m512i c = a;
  __m512i d = a;
  for (size_t i = 0; i < size; i += 256) {
    a = _mm512_or_si512(a, _mm512_loadu_si512(from + i));
    b = _mm512_or_si512(b, _mm512_loadu_si512(from + i + 64));
    c = _mm512_or_si512(c, _mm512_loadu_si512(from + i + 128));
    d = _mm512_or_si512(d, _mm512_loadu_si512(from + i + 192));
  }
  const __m512i all = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
  return _mm512_test_epi64_mask(all, all);
}

// Returns whether any byte differs. `size` is a multiple of 256.
DWS_TARGET_AVX512 uint64_t CompareAvx512(const std::byte* one, const std::byte* two, size_t size) {
  __m512i a = _mm512_setzero_si512();
  __m512i b = a;
  __m512i c = a;
  __m512i d = a;
  constexpr int kOrXor = 0xF6;  // first or (second xor third)
  for (size_t i = 0; i < size; i += 256) {
    a = _mm512_ternarylogic_epi64(a, _mm512_loadu_si512(one + i), _mm512_loadu_si512(two + i),
                                  kOrXor);
    b = _mm512_ternarylogic_epi64(b, _mm512_loadu_si512(one + i + 64),
                                  _mm512_loadu_si512(two + i + 64), kOrXor);
    c = _mm512_ternarylogic_epi64(c, _mm512_loadu_si512(one + i + 128),
                                  _mm512_loadu_si512(two + i + 128), kOrXor);
    d = _mm512_ternarylogic_epi64(d, _mm512_loadu_si512(one + i + 192),
                                  _mm512_loadu_si512(two + i + 192), kOrXor);
  }
  const __m512i all = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
  return _mm512_test_epi64_mask(all, all);
}

// The compiler's own vectors; also used for the ends that the other variant leaves.
uint64_t ReadPortable(const std::byte* from, size_t size) {
  uint64_t all = 0;
  size_t i = 0;
  for (; i + 8 <= size; i += 8) all |= LoadLe<uint64_t>(from + i);
  for (; i < size; ++i) all |= static_cast<uint64_t>(from[i]);
  return all;
}

uint64_t Read(ByteSpan bytes) {
  const size_t wide = ActiveInstructionSet() == InstructionSet::kAvx512 ? bytes.size() & ~255 : 0;
  uint64_t all = wide != 0 ? ReadAvx512(bytes.data(), wide) : 0;
  return all | ReadPortable(bytes.data() + wide, bytes.size() - wide);
}

bool Differ(const StreamPair& pair) {
  const size_t size = pair.a.size();
  const size_t wide = ActiveInstructionSet() == InstructionSet::kAvx512 ? size & ~255 : 0;
  const bool differ = wide != 0 && CompareAvx512(pair.a.data(), pair.b.data(), wide) != 0;
  return differ || std::memcmp(pair.a.data() + wide, pair.b.data() + wide, size - wide) != 0;
}

uint64_t Gather(const uint16_t* words, std::span<const uint32_t> index, size_t distance) {
  uint64_t sum = 0;
  const size_t ahead = index.size() > distance ? index.size() - distance : 0;
  size_t i = 0;
  for (; i < ahead; ++i) {
    __builtin_prefetch(words + index[i + distance]);
    sum += words[index[i]];
  }
  for (; i < index.size(); ++i) sum += words[index[i]];
  return sum;
}

void ScatterShared(uint16_t* words, const uint32_t* index, const uint16_t* values, size_t count,
                   size_t distance) {
  const size_t ahead = count > distance ? count - distance : 0;
  size_t i = 0;
  for (; i < ahead; ++i) {
    __builtin_prefetch(words + index[i + distance], 0);
    words[index[i]] = values[i];
  }
  for (; i < count; ++i) words[index[i]] = values[i];
}

// PREFETCHW: the line arrives ready for writing.
__attribute__((target("prfchw"))) void ScatterExclusive(uint16_t* words, const uint32_t* index,
                                                        const uint16_t* values, size_t count,
                                                        size_t distance) {
  const size_t ahead = count > distance ? count - distance : 0;
  size_t i = 0;
  for (; i < ahead; ++i) {
    __builtin_prefetch(words + index[i + distance], 1);
    words[index[i]] = values[i];
  }
  for (; i < count; ++i) words[index[i]] = values[i];
}

// Calls part(first, count) for shares of [0, count) on all threads.
template <typename Part>
void ShareOut(size_t count, ThreadPool& pool, const Part& part) {
  const size_t share = count / (pool.worker_count() * kSharesPerWorker) + 1;
  pool.ParallelFor((count + share - 1) / share, [&](size_t number, size_t) {
    const size_t first = number * share;
    part(first, std::min(share, count - first));
  });
}

double SecondsOf(const auto& work) {
  const RealClock clock;
  const TimePoint start = clock.Now();
  work();
  return ToSeconds(clock.Now() - start);
}

}  // namespace

void AppendPieces(ByteSpan a, ByteSpan b, std::vector<StreamPair>& pieces) {
  DWS_CHECK(a.size() == b.size());
  for (size_t offset = 0; offset < a.size(); offset += kPieceBytes) {
    const size_t size = std::min(kPieceBytes, a.size() - offset);
    pieces.push_back({.a = a.subspan(offset, size), .b = b.subspan(offset, size)});
  }
}

uint64_t ReadStreams(std::span<const StreamPair> pieces, ThreadPool& pool) {
  std::atomic<uint64_t> all{0};
  pool.ParallelFor(pieces.size(), [&](size_t i, size_t) { all.fetch_or(Read(pieces[i].a)); });
  pool.ParallelFor(pieces.size(), [&](size_t i, size_t) { all.fetch_or(Read(pieces[i].b)); });
  return all.load();
}

bool CompareStreams(std::span<const StreamPair> pieces, ThreadPool& pool) {
  std::atomic<bool> differ{false};
  pool.ParallelFor(pieces.size(), [&](size_t i, size_t) {
    if (Differ(pieces[i])) differ.store(true, std::memory_order_relaxed);
  });
  return differ.load();
}

void CopyStream(MutableByteSpan to, ByteSpan from, ThreadPool& pool) {
  DWS_CHECK(to.size() == from.size());
  ShareOut(from.size() / 64, pool, [&](size_t first, size_t count) {
    std::memcpy(to.data() + first * 64, from.data() + first * 64, count * 64);
  });
  const size_t whole = from.size() / 64 * 64;
  std::memcpy(to.data() + whole, from.data() + whole, from.size() - whole);
}

uint64_t GatherWords(const uint16_t* words, std::span<const uint32_t> index, uint32_t distance,
                     ThreadPool& pool) {
  std::atomic<uint64_t> sum{0};
  ShareOut(index.size(), pool, [&](size_t first, size_t count) {
    sum.fetch_add(Gather(words, index.subspan(first, count), distance));
  });
  return sum.load();
}

void ScatterWords(uint16_t* words, std::span<const uint32_t> index,
                  std::span<const uint16_t> values, Prefetch prefetch, ThreadPool& pool) {
  ShareOut(index.size(), pool, [&](size_t first, size_t count) {
    const auto scatter = prefetch.exclusive ? ScatterExclusive : ScatterShared;
    scatter(words, index.data() + first, values.data() + first, count, prefetch.distance);
  });
}

uint32_t BestGatherDistance(const uint16_t* words, std::span<const uint32_t> index,
                            ThreadPool& pool) {
  uint32_t best = 0;
  double best_seconds = 1e30;
  for (const uint32_t distance : kDistances) {
    const double seconds = SecondsOf([&] { GatherWords(words, index, distance, pool); });
    if (seconds >= best_seconds) continue;
    best_seconds = seconds;
    best = distance;
  }
  return best;
}

Prefetch BestScatterPrefetch(uint16_t* words, std::span<const uint32_t> index,
                             std::span<const uint16_t> values, ThreadPool& pool) {
  Prefetch best;
  double best_seconds = 1e30;
  for (const bool exclusive : {false, true}) {
    for (const uint32_t distance : kDistances) {
      const Prefetch tried{.distance = distance, .exclusive = exclusive};
      const double seconds = SecondsOf([&] { ScatterWords(words, index, values, tried, pool); });
      if (seconds >= best_seconds) continue;
      best_seconds = seconds;
      best = tried;
    }
  }
  return best;
}

}  // namespace dws::bench
