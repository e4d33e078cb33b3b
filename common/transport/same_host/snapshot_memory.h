// The memory of a sender's snapshot: an unnamed file that the sender writes and that receivers of
// its host map to read. It holds the bytes of every slice and, behind them, the stamp of every
// block.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/base/unique_fd.h"
#include "common/model/layout.h"
#include "common/transport/same_host/block_stamps.h"

namespace dws {

// The places of everything in the memory of a snapshot. They follow from the layout alone. Slices
// lie in order, and each begins at a cache line; the stamps begin at the page after them.
class SnapshotPlaces {
 public:
  explicit SnapshotPlaces(const RankLayout& layout);

  size_t slice_offset(RankSlice slice) const { return offsets_[slice.value()]; }
  size_t content_bytes() const { return content_bytes_; }  // all slices, with the gaps
  size_t stamps_offset() const { return stamps_offset_; }
  size_t stamp_offset(uint64_t rank_block) const {
    return stamps_offset_ + rank_block * sizeof(BlockStamp);
  }
  size_t size_bytes() const { return size_bytes_; }

 private:
  std::vector<size_t> offsets_;  // by rank slice
  size_t content_bytes_ = 0;
  size_t stamps_offset_ = 0;
  size_t size_bytes_ = 0;
};

// A mapping of that memory. Lifecycle: the destructor unmaps it; the other process's mapping, and
// the bytes, stay. Threads: safe from any; its owner decides who may use the bytes.
class SnapshotMemory {
 public:
  // For the sender: zero bytes, which no other process can shrink, enlarge, or make writable. With
  // `huge_pages` they are in huge pages of 2 MiB, if enough of those are reserved
  // (vm.nr_hugepages). RESOURCE_EXHAUSTED: there is not enough memory.
  static Result<std::unique_ptr<SnapshotMemory>> Create(const RankLayout& layout,
                                                        bool huge_pages = false);
  // For a receiver of the host: maps what ReadOnlyDescriptor gave. INVALID_ARGUMENT: it is no
  // snapshot of `layout`. RESOURCE_EXHAUSTED: as Create.
  static Result<std::unique_ptr<const SnapshotMemory>> Map(UniqueFd descriptor,
                                                           const RankLayout& layout);
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  // Takes the pages now, as far as that is done within 5 s, and not when they are first written,
  // inside a version. By the sender, before anybody writes.
  void Populate(ThreadPool& pool);

  const SnapshotPlaces& places() const { return places_; }
  // The id of the memory. It is the same in every process that maps it, and no other snapshot of
  // this boot has it.
  uint64_t id() const { return id_; }
  // All slices, with the gaps between them. Never write to it in a receiver's mapping.
  MutableByteSpan content() { return {bytes_, places_.content_bytes()}; }
  ByteSpan content() const { return {bytes_, places_.content_bytes()}; }
  // Content and stamps, as they are lent to readers of other hosts.
  ByteSpan all() const { return {bytes_, places_.size_bytes()}; }
  // By rank block number.
  std::span<BlockStamp> stamps() { return {stamps_, block_count_}; }
  std::span<const BlockStamp> stamps() const { return {stamps_, block_count_}; }

  // A new descriptor with which others can map it, and only to read. FAILED_PRECONDITION: this
  // kernel cannot promise that. Others: as ErrnoError.
  Result<UniqueFd> ReadOnlyDescriptor() const;

 private:
  SnapshotMemory(UniqueFd file, const struct stat& found, SnapshotPlaces places, size_t block_count,
                 std::byte* bytes);

  const UniqueFd file_;
  const uint64_t id_;
  const size_t mapped_bytes_;
  const SnapshotPlaces places_;
  const size_t block_count_;
  std::byte* const bytes_;  // mmap
  BlockStamp* const stamps_;
  bool shared_ = true;  // others may map the memory
};

}  // namespace dws
