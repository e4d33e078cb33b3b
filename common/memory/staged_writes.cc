#include "common/memory/staged_writes.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/check.h"

namespace dws {
namespace {

// Chunks double: a frame with one changed element must not cost what one with thousands does.
constexpr size_t kChunkBytesMin = size_t{1} << 10;
constexpr size_t kChunkBytesMax = size_t{1} << 20;

// The targets are scattered over gigabytes: without prefetching, every write waits for its cache
// line.
constexpr size_t kPrefetchDistance = 24;

template <typename T>
void ScatterRun(std::byte* base, const uint32_t* offsets, const std::byte* values, size_t count) {
  const size_t prefetched = count > kPrefetchDistance ? count - kPrefetchDistance : 0;
  size_t i = 0;
  for (; i < prefetched; ++i) {
    __builtin_prefetch(base + offsets[i + kPrefetchDistance], 1);
    std::memcpy(base + offsets[i], values + i * sizeof(T), sizeof(T));
  }
  for (; i < count; ++i) std::memcpy(base + offsets[i], values + i * sizeof(T), sizeof(T));
}

}  // namespace

StagedWrites::StagedWrites(StagedWrites&& other) noexcept
    : runs_(std::exchange(other.runs_, {})),
      chunks_(std::exchange(other.chunks_, {})),
      arena_bytes_(std::exchange(other.arena_bytes_, 0)) {}

StagedWrites& StagedWrites::operator=(StagedWrites&& other) noexcept {
  StagedWrites taken(std::move(other));
  std::swap(runs_, taken.runs_);
  std::swap(chunks_, taken.chunks_);
  std::swap(arena_bytes_, taken.arena_bytes_);
  return *this;
}

std::byte* StagedWrites::Allocate(size_t size) {
  size = (size + 7) / 8 * 8;
  if (chunks_.empty() || chunks_.back().capacity - chunks_.back().used < size) {
    const size_t next =
        chunks_.empty() ? kChunkBytesMin : std::min(chunks_.back().capacity * 2, kChunkBytesMax);
    const size_t capacity = std::max(size, next);
    chunks_.push_back({.bytes = std::make_unique_for_overwrite<std::byte[]>(capacity),
                       .capacity = capacity,
                       .used = 0});
    arena_bytes_ += capacity;
  }
  Chunk& chunk = chunks_.back();
  std::byte* const at = chunk.bytes.get() + chunk.used;
  chunk.used += size;
  return at;
}

void StagedWrites::Append(std::byte* base, uint32_t element_bytes,
                          std::span<const uint32_t> offsets, ByteSpan values) {
  DWS_CHECK(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8);
  DWS_CHECK(values.size() == offsets.size() * element_bytes);
  DWS_CHECK(offsets.size() <= std::numeric_limits<uint32_t>::max());
  if (offsets.empty()) return;

  std::byte* const at = Allocate(offsets.size_bytes() + values.size());
  std::memcpy(at, offsets.data(), offsets.size_bytes());
  std::byte* const values_at = at + offsets.size_bytes();
  std::memcpy(values_at, values.data(), values.size());
  runs_.push_back({.base = base,
                   .offsets = reinterpret_cast<const uint32_t*>(at),
                   .values = values_at,
                   .count = static_cast<uint32_t>(offsets.size()),
                   .element_bytes = element_bytes});
}

void StagedWrites::AppendCopy(std::byte* target, ByteSpan bytes) {
  DWS_CHECK(bytes.size() <= std::numeric_limits<uint32_t>::max());
  if (bytes.empty()) return;
  std::byte* const at = Allocate(bytes.size());
  std::memcpy(at, bytes.data(), bytes.size());
  runs_.push_back({.base = target,
                   .offsets = nullptr,
                   .values = at,
                   .count = static_cast<uint32_t>(bytes.size()),
                   .element_bytes = 1});
}

void StagedWrites::Merge(StagedWrites&& other) {
  runs_.insert(runs_.end(), other.runs_.begin(), other.runs_.end());
  // In front of our last chunk: that one has room for what is appended next.
  const auto before_last = chunks_.empty() ? chunks_.end() : chunks_.end() - 1;
  chunks_.insert(before_last, std::make_move_iterator(other.chunks_.begin()),
                 std::make_move_iterator(other.chunks_.end()));
  arena_bytes_ += other.arena_bytes_;
  other.Clear();
}

void StagedWrites::Clear() {
  runs_.clear();
  chunks_.clear();
  arena_bytes_ = 0;
}

void StagedWrites::Scatter(size_t first, size_t count) const {
  DWS_CHECK(first <= runs_.size() && count <= runs_.size() - first);
  for (size_t i = first; i < first + count; ++i) {
    const Run& run = runs_[i];
    if (run.offsets == nullptr) {
      std::memcpy(run.base, run.values, run.count);
      continue;
    }
    switch (run.element_bytes) {
      case 1:
        ScatterRun<uint8_t>(run.base, run.offsets, run.values, run.count);
        break;
      case 2:
        ScatterRun<uint16_t>(run.base, run.offsets, run.values, run.count);
        break;
      case 4:
        ScatterRun<uint32_t>(run.base, run.offsets, run.values, run.count);
        break;
      case 8:
        ScatterRun<uint64_t>(run.base, run.offsets, run.values, run.count);
        break;
    }
  }
}

}  // namespace dws
