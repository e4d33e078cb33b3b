#include "common/memory/staged_writes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "common/base/check.h"

namespace dws {
namespace {

// Chunks double in size, so that one changed element does not take as much memory as thousands.
constexpr size_t kChunkBytesMin = size_t{1} << 10;
constexpr size_t kChunkBytesMax = size_t{4} << 20;
constexpr size_t kChunkPagesMin = size_t{2} << 20;  // larger chunks are OwnPages

constexpr size_t RoundUp(size_t size, size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// The capacity of a chunk for `size` bytes: OwnPages are whole huge pages.
constexpr size_t ChunkCapacity(size_t size) {
  return RoundUp(size, size < kChunkPagesMin ? 8 : kHugePageBytes);
}

// The targets are scattered over gigabytes: without prefetching, every write waits for its cache
// line. The distance is in elements and crosses the ends of runs, because runs may be short.
constexpr uint32_t kPrefetchDistance = 256;

// A contiguous piece of so many bytes takes as long as one scattered element.
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

// A scattered run, or a part of it.
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

// Writes the first `count` elements of `part` and prefetches as many of `ahead`, unless it is null.
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

StagedWrites::StagedWrites(StagedWrites&& other) noexcept
    : budget_(other.budget_),
      runs_(std::exchange(other.runs_, {})),
      cost_up_to_(std::exchange(other.cost_up_to_, {})),
      chunks_(std::exchange(other.chunks_, {})),
      arena_bytes_(std::exchange(other.arena_bytes_, 0)) {}

StagedWrites& StagedWrites::operator=(StagedWrites&& other) noexcept {
  StagedWrites taken(std::move(other));
  std::swap(budget_, taken.budget_);
  std::swap(runs_, taken.runs_);
  std::swap(cost_up_to_, taken.cost_up_to_);
  std::swap(chunks_, taken.chunks_);
  std::swap(arena_bytes_, taken.arena_bytes_);
  return *this;
}

bool StagedWrites::AddChunk(size_t size, size_t wanted) {
  const size_t usual =
      chunks_.empty() ? kChunkBytesMin : std::min(chunks_.back().capacity * 2, kChunkBytesMax);
  size_t capacity = ChunkCapacity(std::max(wanted, usual));
  if (!Take(capacity)) {
    capacity = ChunkCapacity(size);
    if (!Take(capacity)) {
      budget_->Pass();
      return false;
    }
  }
  Chunk chunk{.pages = nullptr, .heap = nullptr, .capacity = capacity, .used = 0};
  if (capacity >= kChunkPagesMin) {
    chunk.pages = budget_ == nullptr ? AllocateOwnPages(capacity) : budget_->Pages(capacity);
  } else {
    if (budget_ != nullptr) budget_->MakeRoom(capacity);
    chunk.heap = std::make_unique_for_overwrite<std::byte[]>(capacity);
  }
  arena_bytes_ += capacity;
  chunks_.push_back(std::move(chunk));
  return true;
}

bool StagedWrites::MakeRoom(size_t size, size_t wanted) {
  if (!Take(kRunBytes)) {
    budget_->Pass();
    return false;
  }
  return LeftInChunk() >= RoundUp(size, 8) || AddChunk(size, wanted);
}

std::byte* StagedWrites::Allocate(size_t size) {
  Chunk& chunk = chunks_.back();
  std::byte* const at = chunk.bytes() + chunk.used;
  chunk.used += RoundUp(size, 8);
  DWS_CHECK(chunk.used <= chunk.capacity);
  return at;
}

StagedWrites::Room StagedWrites::Open(std::byte* base, uint32_t element_bytes, uint32_t count,
                                      uint32_t count_max) {
  DWS_CHECK(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8);
  DWS_CHECK(count > 0 && count <= count_max);
  // Elements go into the rest of the last chunk if all `count` fit into it. Otherwise such rests
  // would take half of the memory.
  if (!MakeRoom(ElementsBytes(element_bytes, count), ElementsBytes(element_bytes, count_max))) {
    return {};
  }
  const uint64_t fits = LeftInChunk() / ElementsBytes(element_bytes, 1);
  const auto room_count = static_cast<uint32_t>(std::min<uint64_t>(count_max, fits));
  std::byte* const at = Allocate(ElementsBytes(element_bytes, room_count));
  Room room{.offsets = reinterpret_cast<uint32_t*>(at),
            .values = at + size_t{room_count} * sizeof(uint32_t),
            .left = room_count,
            .run = runs_.size()};
  runs_.push_back({.base = base,
                   .offsets = room.offsets,
                   .values = room.values,
                   .count = 0,
                   .element_bytes = element_bytes});
  return room;
}

void StagedWrites::Fill(Room& room, uint32_t count) {
  DWS_CHECK(count <= room.left && room.run < runs_.size());
  Run& run = runs_[room.run];
  run.count += count;
  room.offsets += count;
  room.values += size_t{count} * run.element_bytes;
  room.left -= count;
}

void StagedWrites::Append(std::byte* base, uint32_t element_bytes,
                          std::span<const uint32_t> offsets, ByteSpan values) {
  DWS_CHECK(values.size() == offsets.size() * element_bytes);
  DWS_CHECK(offsets.size() <= std::numeric_limits<uint32_t>::max());
  if (offsets.empty()) return;
  const uint32_t count = static_cast<uint32_t>(offsets.size());
  Room room = Open(base, element_bytes, count, count);
  if (room.left == 0) return;
  std::memcpy(room.offsets, offsets.data(), offsets.size_bytes());
  std::memcpy(room.values, values.data(), values.size());
  Fill(room, count);
}

void StagedWrites::AppendCopy(std::byte* target, ByteSpan bytes) {
  DWS_CHECK(bytes.size() <= std::numeric_limits<uint32_t>::max());
  if (bytes.empty() || !MakeRoom(bytes.size(), bytes.size())) return;
  std::byte* const at = Allocate(bytes.size());
  std::memcpy(at, bytes.data(), bytes.size());
  runs_.push_back({.base = target,
                   .offsets = nullptr,
                   .values = at,
                   .count = static_cast<uint32_t>(bytes.size()),
                   .element_bytes = 1});
}

void StagedWrites::AppendRuns(const StagedWrites& other, size_t first, size_t count) {
  DWS_CHECK(first <= other.runs_.size() && count <= other.runs_.size() - first);
  const auto begin = other.runs_.begin() + static_cast<ptrdiff_t>(first);
  std::copy_if(begin, begin + static_cast<ptrdiff_t>(count), std::back_inserter(runs_),
               [](const Run& run) { return run.count != 0; });
}

void StagedWrites::TakeMemory(StagedWrites&& other) {
  // Inserts them before our last chunk, because that one has room for later appends.
  const auto before_last = chunks_.empty() ? chunks_.end() : chunks_.end() - 1;
  chunks_.insert(before_last, std::make_move_iterator(other.chunks_.begin()),
                 std::make_move_iterator(other.chunks_.end()));
  arena_bytes_ += other.arena_bytes_;
  other.Clear();
}

void StagedWrites::Clear() {
  runs_ = std::vector<Run>();
  cost_up_to_ = std::vector<uint64_t>();
  chunks_.clear();
  arena_bytes_ = 0;
}

// Writing: all runs, or a share of them.

uint64_t StagedWrites::Run::cost() const {
  return offsets == nullptr ? CeilDiv(count, kPieceBytesPerElement) : count;
}

void StagedWrites::Seal() {
  cost_up_to_.clear();
  cost_up_to_.reserve(runs_.size());
  uint64_t cost = 0;
  for (const Run& run : runs_) cost_up_to_.push_back(cost += run.cost());
}

// Iterates over the parts of scattered runs in a section of all runs. Contiguous pieces are
// skipped, or copied at once.
class StagedWrites::Reader {
 public:
  Reader(std::span<const Run> runs, uint64_t skip, uint64_t cost)
      : runs_(runs), skip_(skip), left_(cost) {}

  // Finds the next part if `part` is empty; false at the end.
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
