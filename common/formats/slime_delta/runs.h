// Runs of changed bytes of a tensor, and payloads made of them. Pure.
//
// A dws_runs payload has, for each run: LEB128 bytes since the last run's end | LEB128 size | the
// new bytes. Applying it again, or over a half-changed tensor, gives the same bytes: it is what a
// local checkpoint's changes are written down as before the checkpoint is touched (apply.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws::slime {

// `size_bytes` bytes of a tensor from `offset`.
struct ByteRun {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
};

// Runs of the bytes that differ, with up to `join_bytes` equal ones inside. Both have one size.
std::vector<ByteRun> ChangedRuns(ByteSpan before, ByteSpan after, uint64_t join_bytes);

// INVALID_ARGUMENT: runs that are empty, out of order, overlapping or not in the tensor.
Status CheckRunOrder(std::span<const ByteRun> runs, uint64_t tensor_bytes);

// Of runs that are in order.
std::vector<std::byte> EncodeRuns(ByteSpan after, std::span<const ByteRun> runs);

// Equal bytes between two runs that cost less in a run than between two.
inline constexpr uint64_t kRunJoinBytes = 2;
// No payload of runs is larger: a byte each, two numbers of a byte, and a byte more for each 128
// bytes that a run covers or skips.
constexpr uint64_t RunsBytesMax(uint64_t tensor_bytes) { return 3 * tensor_bytes + 64; }

// DATA_LOSS: cut off, or a run outside the tensor.
Status CheckRuns(ByteSpan payload, uint64_t tensor_bytes);
// The runs of a payload that CheckRuns accepted, one by one.
class RunReader {
 public:
  explicit RunReader(ByteSpan checked_payload) : rest_(checked_payload) {}
  struct Run {
    uint64_t offset = 0;
    ByteSpan bytes;
  };
  std::optional<Run> Next();

 private:
  ByteSpan rest_;
  uint64_t end_ = 0;  // of the run before
};

}  // namespace dws::slime
