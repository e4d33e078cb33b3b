// Staged writes: absolute values beside the memory they go to, ready to be scattered inside the
// pause.
//
// A changed element costs its own bytes and a 4-byte offset; a contiguous piece costs its own bytes
// only. Values are absolute, so a scatter may be repeated after a crash and gives the same memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/bytes.h"

namespace dws {

// Lifecycle: filled by Append..., scattered any number of times, then destroyed or Cleared. The
// target memory must stay mapped until then. Threads: one at a time; to stage in parallel give each
// worker its own and Merge them.
class StagedWrites {
 public:
  StagedWrites() = default;
  StagedWrites(StagedWrites&& other) noexcept;
  StagedWrites& operator=(StagedWrites&& other) noexcept;

  // Element i of `values` (packed, offsets.size() * element_bytes bytes) goes to base + offsets[i].
  // Copies both. element_bytes is 1, 2, 4 or 8.
  void Append(std::byte* base, uint32_t element_bytes, std::span<const uint32_t> offsets,
              ByteSpan values);
  // `bytes` go to `target`, contiguously.
  void AppendCopy(std::byte* target, ByteSpan bytes);
  // Takes over what `other` holds, behind what is here; `other` is empty afterwards. No copying of
  // values.
  void Merge(StagedWrites&& other);
  void Clear();

  // Memory held, for the staging cap.
  uint64_t size_bytes() const { return arena_bytes_ + runs_.size() * sizeof(Run); }
  size_t run_count() const { return runs_.size(); }

  // Writes all, or runs [first, first + count), in the order they were appended: the last value of
  // an address wins, unless parts are scattered in parallel. Allocates nothing, cannot fail.
  void Scatter() const { Scatter(0, runs_.size()); }
  void Scatter(size_t first, size_t count) const;

 private:
  struct Run {
    std::byte* base = nullptr;
    const uint32_t* offsets = nullptr;  // nullptr: one contiguous piece
    const std::byte* values = nullptr;
    uint32_t count = 0;  // elements; bytes of a contiguous piece
    uint32_t element_bytes = 1;
  };
  struct Chunk {
    std::unique_ptr<std::byte[]> bytes;
    size_t capacity = 0;
    size_t used = 0;
  };

  // `size` bytes at a multiple of 8; they never move.
  std::byte* Allocate(size_t size);

  std::vector<Run> runs_;
  std::vector<Chunk> chunks_;
  uint64_t arena_bytes_ = 0;
};

}  // namespace dws
