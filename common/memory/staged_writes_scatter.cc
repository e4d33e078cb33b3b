// The half of StagedWrites that writes: all of its runs, or a share of them.
#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/memory/staged_writes.h"

namespace dws {
namespace {

// The targets are scattered over gigabytes: without prefetching, every write waits for its cache
// line. The distance is in elements, over the ends of runs: runs may be short.
constexpr uint32_t kPrefetchDistance = 256;

// Bytes of a contiguous piece that take as long as one scattered element.
constexpr uint64_t kPieceBytesPerElement = 128;

template <typename T>
void ScatterElements(std::byte* base, const uint32_t* offsets, const std::byte* values,
                     const std::byte* ahead_base, const uint32_t* ahead_offsets, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    __builtin_prefetch(ahead_base + ahead_offsets[i], 0, 2);
    std::memcpy(base + offsets[i], values + size_t{i} * sizeof(T), sizeof(T));
  }
}

template <typename T>
void ScatterLast(std::byte* base, const uint32_t* offsets, const std::byte* values,
                 uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(base + offsets[i], values + size_t{i} * sizeof(T), sizeof(T));
  }
}

// Elements of scattered runs, part of a run at a time.
struct Part {
  std::byte* base = nullptr;
  const uint32_t* offsets = nullptr;
  const std::byte* values = nullptr;
  uint32_t count = 0;
  uint32_t element_bytes = 1;

  void Skip(uint32_t elements) {
    offsets += elements;
    values += size_t{elements} * element_bytes;
    count -= elements;
  }
};

// Writes the first `count` elements of `part` and fetches as many of `ahead`, if there are any.
void ScatterPart(const Part& part, const Part* ahead, uint32_t count) {
  const auto scatter = [&](auto element) {
    using T = decltype(element);
    if (ahead == nullptr) {
      ScatterLast<T>(part.base, part.offsets, part.values, count);
    } else {
      ScatterElements<T>(part.base, part.offsets, part.values, ahead->base, ahead->offsets, count);
    }
  };
  switch (part.element_bytes) {
    case 1:
      return scatter(uint8_t{});
    case 2:
      return scatter(uint16_t{});
    case 4:
      return scatter(uint32_t{});
    default:
      return scatter(uint64_t{});
  }
}

}  // namespace

uint64_t StagedWrites::Run::cost() const {
  return offsets == nullptr ? CeilDiv(count, kPieceBytesPerElement) : count;
}

void StagedWrites::Seal() {
  cost_up_to_.clear();
  cost_up_to_.reserve(runs_.size());
  uint64_t cost = 0;
  for (const Run& run : runs_) cost_up_to_.push_back(cost += run.cost());
}

// The parts of scattered runs in a stretch of all runs, one after the other. Contiguous pieces are
// passed over, or copied at once.
class StagedWrites::Reader {
 public:
  Reader(std::span<const Run> runs, uint64_t skip, uint64_t cost)
      : runs_(runs), skip_(skip), left_(cost) {}

  // Finds the next part when there is none; false at the end.
  bool Find(bool copy_pieces) {
    while (part.count == 0 && left_ > 0 && !runs_.empty()) {
      const Run& run = runs_.front();
      runs_ = runs_.subspan(1);
      const uint64_t first = std::exchange(skip_, 0);
      const uint64_t count = std::min(run.cost() - first, left_);
      left_ -= count;
      if (run.offsets != nullptr) {
        part = {.base = run.base,
                .offsets = run.offsets + first,
                .values = run.values + first * run.element_bytes,
                .count = static_cast<uint32_t>(count),
                .element_bytes = run.element_bytes};
      } else if (copy_pieces) {
        const uint64_t begin = first * kPieceBytesPerElement;
        const uint64_t end = std::min<uint64_t>((first + count) * kPieceBytesPerElement, run.count);
        std::memcpy(run.base + begin, run.values + begin, end - begin);
      }
    }
    return part.count != 0;
  }

  Part part;

 private:
  std::span<const Run> runs_;
  uint64_t skip_;  // of the first run
  uint64_t left_;
};

void StagedWrites::ScatterFrom(size_t run, uint64_t skip, uint64_t cost) const {
  Reader writer(std::span<const Run>(runs_).subspan(run), skip, cost);
  Reader ahead = writer;
  for (uint32_t fetched = 0; fetched < kPrefetchDistance && ahead.Find(false);) {
    const uint32_t count = std::min(ahead.part.count, kPrefetchDistance - fetched);
    for (uint32_t i = 0; i < count; ++i) {
      __builtin_prefetch(ahead.part.base + ahead.part.offsets[i], 0, 2);
    }
    ahead.part.Skip(count);
    fetched += count;
  }
  while (writer.Find(true)) {
    const bool fetch = ahead.Find(false);
    const uint32_t count =
        fetch ? std::min(writer.part.count, ahead.part.count) : writer.part.count;
    ScatterPart(writer.part, fetch ? &ahead.part : nullptr, count);
    if (fetch) ahead.part.Skip(count);
    writer.part.Skip(count);
  }
}

void StagedWrites::Scatter() const { ScatterFrom(0, 0, std::numeric_limits<uint64_t>::max()); }

void StagedWrites::ScatterShare(size_t share, size_t share_count) const {
  DWS_CHECK(share < share_count && cost_up_to_.size() == runs_.size());
  if (runs_.empty()) return;
  const auto cost_before = [&](size_t shares) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(cost_up_to_.back()) * shares /
                                 share_count);
  };
  const uint64_t begin = cost_before(share);
  const auto first = std::upper_bound(cost_up_to_.begin(), cost_up_to_.end(), begin);
  if (first == cost_up_to_.end()) return;
  const size_t run = static_cast<size_t>(first - cost_up_to_.begin());
  ScatterFrom(run, begin - (*first - runs_[run].cost()), cost_before(share + 1) - begin);
}

}  // namespace dws
