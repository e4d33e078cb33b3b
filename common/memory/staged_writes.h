// Staged writes: absolute values beside the memory they go to, ready to be scattered inside the
// pause.
//
// A changed element costs its own bytes and a 4-byte offset; a contiguous piece costs its own bytes
// only. Values are absolute, so a scatter may be repeated after a crash and gives the same memory.
// Memory comes in chunks, and is taken from a budget as it is allocated, not as it is filled.
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

// Lifecycle: filled by Append..., scattered any number of times, then destroyed or Cleared. The
// target memory must stay mapped until then. Threads: one at a time, but Scatter... from many; to
// stage in parallel give each worker its own, and take over what they hold.
class StagedWrites {
 private:
  struct Run {
    std::byte* base = nullptr;
    const uint32_t* offsets = nullptr;  // nullptr: one contiguous piece
    const std::byte* values = nullptr;
    uint32_t count = 0;  // elements; bytes of a contiguous piece
    uint32_t element_bytes = 1;

    uint64_t cost() const;  // in elements scattered
  };

 public:
  // Where the next elements of an open run go: offset i to offsets[i], value i to values + i *
  // element_bytes. Valid until its StagedWrites is merged, taken over or cleared.
  struct Room {
    uint32_t* offsets = nullptr;
    std::byte* values = nullptr;
    uint32_t left = 0;  // elements
    size_t run = 0;
  };

  StagedWrites() = default;
  // Takes what it allocates from `budget`. What that has no room for is not staged, and the budget
  // passed.
  explicit StagedWrites(StagingBudget& budget) : budget_(&budget) {}
  StagedWrites(StagedWrites&& other) noexcept;
  StagedWrites& operator=(StagedWrites&& other) noexcept;

  // Opens a run to be filled in place: values go to base + offset. element_bytes is 1, 2, 4 or 8.
  // Room for `count` elements (at least 1), and for up to `count_max` as far as memory is at hand;
  // none when the budget passed.
  Room Open(std::byte* base, uint32_t element_bytes, uint32_t count, uint32_t count_max);
  // The next `count` elements of the room are filled: they belong to the run from now on.
  void Fill(Room& room, uint32_t count);
  // Memory that a run takes in the lists that it goes through, at most: in one that grows twofold
  // (where it is filled), in one of the right size, and its cost there.
  static constexpr uint64_t kRunBytes = 3 * sizeof(Run) + sizeof(uint64_t);
  // Memory that so many elements take besides.
  static constexpr uint64_t ElementsBytes(uint32_t element_bytes, uint64_t count) {
    return count * (sizeof(uint32_t) + element_bytes);
  }

  // Element i of `values` (packed, offsets.size() * element_bytes bytes) goes to base + offsets[i].
  // Copies both.
  void Append(std::byte* base, uint32_t element_bytes, std::span<const uint32_t> offsets,
              ByteSpan values);
  // `bytes` go to `target`, contiguously.
  void AppendCopy(std::byte* target, ByteSpan bytes);

  // Room for `count` more runs in the list, and no more: for AppendRuns.
  void ReserveRuns(size_t count) { runs_.reserve(runs_.size() + count); }
  // Copies the runs [first, first + count) of `other` behind those here. Their values stay where
  // they are: `other` must be given to TakeMemory before the runs are used.
  void AppendRuns(const StagedWrites& other, size_t first, size_t count);
  // Takes over the memory of `other`, which has no runs afterwards.
  void TakeMemory(StagedWrites&& other);
  void Clear();

  // Memory held, filled or not.
  uint64_t size_bytes() const {
    return arena_bytes_ + runs_.capacity() * sizeof(Run) +
           cost_up_to_.capacity() * sizeof(uint64_t);
  }
  size_t run_count() const { return runs_.size(); }

  // Writes all, in the order of the runs: the last value of an address wins. Allocates nothing,
  // cannot fail.
  void Scatter() const;
  // Adds up what the runs cost, for ScatterShare; nothing may be staged afterwards.
  void Seal();
  // Writes one of `share_count` (at least 1) parts of about equal cost, whatever the sizes of the
  // runs. Shares may be written at the same time, if no address is written twice. Allocates
  // nothing, cannot fail. Only after Seal.
  void ScatterShare(size_t share, size_t share_count) const;

 private:
  struct Chunk {
    OwnPages pages;                     // one of the two, by size
    std::unique_ptr<std::byte[]> heap;  //
    size_t capacity = 0;
    size_t used = 0;

    std::byte* bytes() const { return pages != nullptr ? pages.get() : heap.get(); }
  };

  class Reader;

  size_t LeftInChunk() const {
    return chunks_.empty() ? 0 : chunks_.back().capacity - chunks_.back().used;
  }
  bool Take(uint64_t bytes) const { return budget_ == nullptr || budget_->Take(bytes); }
  // Room for `size` bytes in a chunk, and for a run in the list; a new chunk has `wanted` bytes if
  // the budget does. False: the budget passed.
  bool MakeRoom(size_t size, size_t wanted);
  bool AddChunk(size_t size, size_t wanted);
  // `size` bytes that there is room for, at a multiple of 8; they never move.
  std::byte* Allocate(size_t size);
  // Writes `cost` elements' worth from `skip` elements behind the beginning of run `run` on.
  void ScatterFrom(size_t run, uint64_t skip, uint64_t cost) const;

  StagingBudget* budget_ = nullptr;  // none: no limit
  std::vector<Run> runs_;
  std::vector<uint64_t> cost_up_to_;  // the runs up to and with this one; empty until sealed
  std::vector<Chunk> chunks_;
  uint64_t arena_bytes_ = 0;
};

}  // namespace dws
