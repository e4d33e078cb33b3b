#include "common/memory/staged_writes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "common/base/check.h"

namespace dws {
namespace {

// Chunks double: one changed element must not cost what thousands do.
constexpr size_t kChunkBytesMin = size_t{1} << 10;
constexpr size_t kChunkBytesMax = size_t{4} << 20;
constexpr size_t kChunkPagesMin = size_t{2} << 20;  // from here on in pages of its own

constexpr size_t RoundUp(size_t size, size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// What there is of a chunk for `size` bytes: pages come in huge ones.
constexpr size_t ChunkCapacity(size_t size) {
  return RoundUp(size, size < kChunkPagesMin ? 8 : kHugePageBytes);
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
    chunk.pages = AllocateOwnPages(capacity);
  } else {
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
  // What is left of a chunk is used up first, as far as it holds the least: or half of the memory
  // would be such leftovers.
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
  // In front of our last chunk: that one has room for what is appended next.
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

}  // namespace dws
