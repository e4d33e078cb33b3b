// Bytes fetched from a sender, kept until they are applied: in memory up to a cap, beyond it in an
// unnamed file, which the kernel deletes when the process ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/own_pages.h"
#include "common/spool/transfer_progress.h"

namespace dws {

// Lifecycle: filled by Append, or by Allocate and then Room and Fill, then read. Moved, never
// copied. Threads: one calls Append and Allocate; many may call Room and Fill at once, for
// different bytes; many may call Read at once, after the last Fill.
class Spool {
 public:
  struct Options {
    std::string folder;                    // for the file
    uint64_t memory_bytes_max = 0;         // beyond this everything goes to the file
    uint64_t size_bytes_max = 0;           // the most bytes that Append accepts
    uint64_t size_bytes_expected = 0;      // an estimate; 0: unknown
    TransferProgress* progress = nullptr;  // not owned; counts the bytes that arrive
    std::function<bool()> wanted = {};     // called by each Append and Fill; none: always wanted
    std::shared_ptr<SparePages> spare = nullptr;  // gives Allocate large memory
  };

  explicit Spool(Options options) : options_(std::move(options)) {}
  Spool(Spool&&) = default;
  Spool& operator=(Spool&&) = default;

  // DATA_LOSS: more than size_bytes_max. RESOURCE_EXHAUSTED: the disk is full. CANCELLED: `wanted`
  // returned false. Other disk errors: as ErrnoError, mostly UNAVAILABLE.
  Status Append(ByteSpan bytes);

  // Makes room for exactly `size` bytes, which Fill brings in any order, and no Append. Errors as
  // Append's.
  Status Allocate(uint64_t size);
  // Returns the memory that Allocate takes for `size` bytes; 0: they go to the file.
  static uint64_t MemoryOf(uint64_t size, uint64_t memory_bytes_max);
  // Returns the place for `size` of these bytes before Fill takes them: in the spool's memory, or
  // in `buffer` if they go to the file.
  MutableByteSpan Room(uint64_t offset, uint64_t size, std::vector<std::byte>& buffer);
  // All bytes of Allocate, for callers that need to know their place beforehand; empty if they go
  // to the file.
  MutableByteSpan memory() { return {Memory(), on_disk() ? 0 : size_bytes_}; }
  // CANCELLED: `wanted` returned false.
  Status CheckWanted() const;
  // `bytes`: the place that Room returned, filled, or bytes to copy there. Filling again replaces
  // them. CANCELLED: `wanted` returned false. Disk errors as Append.
  Status Fill(uint64_t offset, ByteSpan bytes);

  // Returns `size` bytes from `offset`: a view of the spool's memory, or of `buffer` after reading
  // the file into it. DATA_LOSS: they are not inside the spool, or the disk lost them. Other errors
  // as ErrnoError.
  Result<ByteSpan> Read(uint64_t offset, uint64_t size, std::vector<std::byte>& buffer) const;

  uint64_t size_bytes() const { return size_bytes_; }
  bool on_disk() const { return file_.valid(); }
  // Memory that it holds, used or not.
  uint64_t memory_bytes() const {
    return memory_.capacity() + (pages_ == nullptr ? 0 : pages_.get_deleter().size);
  }

 private:
  // The peak of memory held if `more` bytes are appended to memory.
  uint64_t MemoryFor(uint64_t more) const;
  Status OpenFile();
  std::byte* Memory() { return pages_ != nullptr ? pages_.get() : memory_.data(); }
  Status WriteFile(ByteSpan bytes, uint64_t offset) const;

  Options options_;
  uint64_t size_bytes_ = 0;
  std::vector<std::byte> memory_;  // of what was appended
  OwnPages pages_;                 // of what was allocated
  UniqueFd file_;
};

}  // namespace dws
