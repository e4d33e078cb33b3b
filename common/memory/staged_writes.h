// Staged writes: absolute values kept beside the target memory, ready to scatter inside the pause.
//
// A changed element takes its bytes and a 4-byte offset; a contiguous piece takes only its bytes.
// Values are absolute, so a scatter may be repeated after a crash and gives the same memory. Memory
// is allocated in chunks, and counted in a budget when it is allocated, not when it is filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/memory/own_pages.h"
#include "common/memory/staging_budget.h"

namespace dws {

// Lifecycle: filled by Append... or Open and Fill, scattered any number of times, then destroyed or
// cleared. The target memory must stay mapped until then. Threads: one at a time, but Scatter...
// from many. To stage in parallel, give each worker its own object and merge them afterwards
// (AppendRuns, TakeMemory).
class StagedWrites {
 private:
  struct Run {
    std::byte* base = nullptr;
    const uint32_t* offsets = nullptr;  // nullptr: one contiguous piece
    const std::byte* values = nullptr;
    uint32_t count = 0;  // elements; bytes of a contiguous piece
    uint32_t element_bytes = 1;

    uint64_t cost() const;  // in scattered elements
  };

 public:
  // The place for the next elements of an open run: offset i at offsets[i], value i at values + i *
  // element_bytes. Valid until its StagedWrites is passed to TakeMemory, moved from or cleared.
  struct Room {
    uint32_t* offsets = nullptr;
    std::byte* values = nullptr;
    uint32_t left = 0;  // elements
    size_t run = 0;
  };

  StagedWrites() = default;
  // Counts its allocations in `budget`. Values for which the budget has no room are not staged, and
  // the budget is marked as exceeded (Pass).
  explicit StagedWrites(StagingBudget& budget) : budget_(&budget) {}
  StagedWrites(StagedWrites&& other) noexcept;
  StagedWrites& operator=(StagedWrites&& other) noexcept;

  // Opens a run to be filled in place: values go to base + offset. element_bytes is 1, 2, 4 or 8.
  // Returns room for at least `count` elements (at least 1) and at most `count_max`, depending on
  // the memory in the chunk; no room when the budget is exceeded.
  Room Open(std::byte* base, uint32_t element_bytes, uint32_t count, uint32_t count_max);
  // Adds the next `count` elements of the room, which are filled, to the run.
  void Fill(Room& room, uint32_t count);
  // The most memory that a run takes in lists: two entries in the list that doubles as runs are
  // opened, one in a list of exact size, and its cost there.
  static constexpr uint64_t kRunBytes = 3 * sizeof(Run) + sizeof(uint64_t);
  // The memory of `count` elements.
  static constexpr uint64_t ElementsBytes(uint32_t element_bytes, uint64_t count) {
    return count * (sizeof(uint32_t) + element_bytes);
  }

  // Element i of `values` (packed, offsets.size() * element_bytes bytes) goes to base + offsets[i].
  // Copies both.
  void Append(std::byte* base, uint32_t element_bytes, std::span<const uint32_t> offsets,
              ByteSpan values);
  // `bytes` go to `target`, contiguously.
  void AppendCopy(std::byte* target, ByteSpan bytes);

  // Reserves the list for exactly `count` more runs, before AppendRuns.
  void ReserveRuns(size_t count) { runs_.reserve(runs_.size() + count); }
  // Appends copies of the runs [first, first + count) of `other`. Their values stay in the memory
  // of `other`, which must be passed to TakeMemory before the runs are used.
  void AppendRuns(const StagedWrites& other, size_t first, size_t count);
  // Takes over the memory of `other`, which has no runs afterwards.
  void TakeMemory(StagedWrites&& other);
  void Clear();

  // The memory it holds, filled or not.
  uint64_t size_bytes() const {
    return arena_bytes_ + runs_.capacity() * sizeof(Run) +
           cost_up_to_.capacity() * sizeof(uint64_t);
  }
  size_t run_count() const { return runs_.size(); }

  // Writes all values, in the order of the runs: the last value of an address wins. Allocates
  // nothing, cannot fail.
  void Scatter() const;
  // Adds up the costs of the runs, for ScatterShare. Nothing may be staged afterwards.
  void Seal();
  // Writes one of `share_count` (at least 1) parts of about equal cost, whatever the sizes of the
  // runs. Shares may be written at the same time, if no address is written twice. Allocates
  // nothing, cannot fail. Only after Seal.
  void ScatterShare(size_t share, size_t share_count) const;

 private:
  struct Chunk {
    OwnPages pages;                     // of a large chunk
    std::unique_ptr<std::byte[]> heap;  // memory of a small chunk
    size_t capacity = 0;
    size_t used = 0;

    std::byte* bytes() const { return pages != nullptr ? pages.get() : heap.get(); }
  };

  class Reader;

  size_t LeftInChunk() const {
    return chunks_.empty() ? 0 : chunks_.back().capacity - chunks_.back().used;
  }
  bool Take(uint64_t bytes) const { return budget_ == nullptr || budget_->Take(bytes); }
  // Makes room for `size` bytes in a chunk and for a run in the list. A new chunk has `wanted`
  // bytes if the budget allows. False: the budget is exceeded.
  bool MakeRoom(size_t size, size_t wanted);
  bool AddChunk(size_t size, size_t wanted);
  // `size` bytes at a multiple of 8, after MakeRoom. They never move.
  std::byte* Allocate(size_t size);
  // Writes elements that cost `cost`, from `skip` after the beginning of run `run` on.
  void ScatterFrom(size_t run, uint64_t skip, uint64_t cost) const;

  StagingBudget* budget_ = nullptr;  // null: no limit
  std::vector<Run> runs_;
  // Costs of the runs up to and including this one; empty until Seal.
  std::vector<uint64_t> cost_up_to_;
  std::vector<Chunk> chunks_;
  uint64_t arena_bytes_ = 0;
};

}  // namespace dws
