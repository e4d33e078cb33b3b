// Runs of changed bytes of a tensor, and payloads made of them. Pure.
//
// A dws_runs payload has, for each run: LEB128 bytes since the last run's end | LEB128 size | the
// new bytes. Applying it again, or over a half-changed tensor, gives the same bytes. So redo
// records use it for the changes of a local checkpoint (redo.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws::slime {

// A run: `size_bytes` bytes of a tensor from `offset`.
struct ByteRun {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
};

// So many equal bytes inside a run cost no more than the two numbers of another run.
inline constexpr uint64_t kRunJoinBytes = 2;

// Adds a changed byte to runs that are in order. Its place is at or after the last byte of the last
// run. Runs with at most kRunJoinBytes between them become one.
inline void AddChange(uint64_t at, std::vector<ByteRun>& runs) {
  if (!runs.empty()) {
    ByteRun& last = runs.back();
    if (at <= last.offset + last.size_bytes + kRunJoinBytes) {
      last.size_bytes = std::max(last.size_bytes, at + 1 - last.offset);
      return;
    }
  }
  runs.push_back({.offset = at, .size_bytes = 1});
}

// Sets `to`, which may be one of the others, to a ^ b, all of the same size; returns whether they
// differ.
bool Xor(ByteSpan a, ByteSpan b, MutableByteSpan to);

// Replaces `difference`, which is before ^ after, by `after`. Appends the runs that differ as
// AddChange does.
void XorWindow(ByteSpan before, MutableByteSpan difference, std::vector<ByteRun>& runs);

// Returns the runs of bytes that differ. Two runs with at most `join_bytes` equal bytes between
// them become one. `before` and `after` have the same size.
std::vector<ByteRun> ChangedRuns(ByteSpan before, ByteSpan after, uint64_t join_bytes);

// Makes a payload of encoding overwrite (payload.h) run by run. Lifecycle: Add any number of times,
// then Take once.
class OverwriteWriter {
 public:
  void Add(uint64_t offset, ByteSpan bytes);
  // INVALID_ARGUMENT: more bytes than 32 bits can count.
  Result<std::vector<std::byte>> Take();

 private:
  std::vector<std::byte> positions_;
  std::vector<std::byte> values_;
};

// Like OverwriteWriter, for dws_runs.
class RunsWriter {
 public:
  // A run at `offset`, which is not before the end of the run before.
  void Add(uint64_t offset, ByteSpan bytes);
  std::vector<std::byte> Take();

 private:
  std::vector<std::byte> payload_;  // and room for more
  size_t used_ = 0;                 // of payload_
  uint64_t end_ = 0;                // of the last run
};

// Reads the runs of a payload that CheckRuns has accepted.
class RunsReader {
 public:
  struct Run {
    uint64_t offset = 0;
    ByteSpan bytes;
  };
  explicit RunsReader(ByteSpan payload)
      : at_(payload.data()), payload_end_(payload.data() + payload.size()) {}
  bool done() const { return at_ == payload_end_; }
  Run Next();  // not when done()

 private:
  const std::byte* at_;
  const std::byte* payload_end_;
  uint64_t run_end_ = 0;  // of the last run, in the tensor
};

// DATA_LOSS: cut off, or a run outside the tensor.
Status CheckRuns(ByteSpan payload, uint64_t tensor_bytes);

// The payload of runs that are in order, do not overlap and are in the tensor.
std::vector<std::byte> EncodeRuns(ByteSpan after, std::span<const ByteRun> runs);

// An upper bound for a payload of runs: each run has its bytes, two numbers of one byte, and at
// most one more byte for each 128 bytes that it covers or skips.
constexpr uint64_t RunsBytesMax(uint64_t tensor_bytes) { return 3 * tensor_bytes + 64; }

}  // namespace dws::slime
