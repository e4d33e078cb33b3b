// Runs of changed bytes of a tensor, and payloads made of them. Pure.
//
// A dws_runs payload has, for each run: LEB128 bytes since the last run's end | LEB128 size | the
// new bytes. Applying it again, or over a half-changed tensor, gives the same bytes. So redo
// records use it for the changes of a local checkpoint (redo.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws::slime {

// A run: `size_bytes` bytes of a tensor from `offset`.
struct ByteRun {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
};

// The runs of bytes that differ. Two runs with at most `join_bytes` equal bytes between them become
// one. `before` and `after` have the same size.
std::vector<ByteRun> ChangedRuns(ByteSpan before, ByteSpan after, uint64_t join_bytes);

// The payload of runs that are in order, do not overlap and are in the tensor.
std::vector<std::byte> EncodeRuns(ByteSpan after, std::span<const ByteRun> runs);

// So many equal bytes cost no more inside a run than the two numbers of another run.
inline constexpr uint64_t kRunJoinBytes = 2;
// An upper bound for a payload of runs: each run has its bytes, two numbers of one byte, and at
// most one more byte for each 128 bytes that it covers or skips.
constexpr uint64_t RunsBytesMax(uint64_t tensor_bytes) { return 3 * tensor_bytes + 64; }

// Writes the runs of `payload` to `tensor`. DATA_LOSS: cut off, or a run outside the tensor; nothing
// has been written then.
Status ApplyRuns(ByteSpan payload, MutableByteSpan tensor);

}  // namespace dws::slime
