// The best that this machine can do: the references for the speed figures, in the fewest
// instructions that do the work. Each runs on the threads of a pool.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/threads/thread_pool.h"

namespace dws::bench {

// A part of two streams of equal size, read together.
struct StreamPair {
  ByteSpan a;
  ByteSpan b;
};

// `a` and `b`, cut into pieces that threads share out.
void AppendPieces(ByteSpan a, ByteSpan b, std::vector<StreamPair>& pieces);

// Reads every `a`, then every `b`: one stream at a time. Returns a value that depends on all bytes.
uint64_t ReadStreams(std::span<const StreamPair> pieces, ThreadPool& pool);
// Reads `a` against `b`: two streams at a time. Returns whether they differ anywhere.
bool CompareStreams(std::span<const StreamPair> pieces, ThreadPool& pool);
// Copies `from` to `to`, of equal size.
void CopyStream(MutableByteSpan to, ByteSpan from, ThreadPool& pool);

// How far ahead a word is prefetched, and whether for writing.
struct Prefetch {
  uint32_t distance = 0;
  bool exclusive = false;
};

// Reads words[i] for each i of `index`. Returns their sum.
uint64_t GatherWords(const uint16_t* words, std::span<const uint32_t> index, uint32_t distance,
                     ThreadPool& pool);
// words[index[i]] = values[i].
void ScatterWords(uint16_t* words, std::span<const uint32_t> index,
                  std::span<const uint16_t> values, Prefetch prefetch, ThreadPool& pool);

// The fastest distance on this machine, measured on the data itself.
uint32_t BestGatherDistance(const uint16_t* words, std::span<const uint32_t> index,
                            ThreadPool& pool);
Prefetch BestScatterPrefetch(uint16_t* words, std::span<const uint32_t> index,
                             std::span<const uint16_t> values, ThreadPool& pool);

}  // namespace dws::bench
