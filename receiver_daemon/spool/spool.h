// Bytes on their way from a sender to the engine, kept whole until they are used: in memory up to a
// cap, past it in a file without a name, which vanishes with the process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "receiver_daemon/spool/transfer_progress.h"

namespace dws {

// Lifecycle: filled by Append, then read. Moved, never copied. Threads: Append by one; Read by many
// at a time, after the last Append.
class Spool {
 public:
  struct Options {
    std::string folder;                    // for the file
    uint64_t memory_bytes_max = 0;         // above: everything goes to the file
    uint64_t size_bytes_max = 0;           // what the sender announced, at most
    uint64_t size_bytes_expected = 0;      // about; 0: unknown
    TransferProgress* progress = nullptr;  // not owned; told of every byte that arrives
    std::function<bool()> wanted = {};     // asked before each Append; none: always
  };

  explicit Spool(Options options) : options_(std::move(options)) {}
  Spool(Spool&&) = default;
  Spool& operator=(Spool&&) = default;

  // DATA_LOSS: more than size_bytes_max. RESOURCE_EXHAUSTED: the disk is full. UNAVAILABLE: other
  // trouble with it. CANCELLED: not wanted any more.
  Status Append(ByteSpan bytes);

  // `size` bytes from `offset`: a view of memory, or of `buffer`, to which they are read.
  // DATA_LOSS: not inside the spool, or the disk lost them.
  Result<ByteSpan> Read(uint64_t offset, uint64_t size, std::vector<std::byte>& buffer) const;

  uint64_t size_bytes() const { return size_bytes_; }
  bool on_disk() const { return file_.valid(); }
  // Memory held, filled or not.
  uint64_t memory_bytes() const { return memory_.capacity(); }

 private:
  // The most memory that `more` bytes there would make it.
  uint64_t MemoryFor(uint64_t more) const;
  Status OpenFile();
  Status WriteFile(ByteSpan bytes, uint64_t offset) const;

  Options options_;
  uint64_t size_bytes_ = 0;
  std::vector<std::byte> memory_;
  UniqueFd file_;
};

}  // namespace dws
