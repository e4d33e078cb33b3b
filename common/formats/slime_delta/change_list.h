// The changes in a payload that names the bytes it changes (overwrite, xor_sparse, dws_runs;
// payload.h), applied to a tensor window by window, from its first byte to its last.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/payload.h"
#include "common/formats/slime_delta/runs.h"

namespace dws::slime {

// Lifecycle: Make, then Apply for each window in order. Threads: one at a time.
class ChangeList {
 public:
  // DATA_LOSS: the payload is malformed or reaches outside a tensor of `tensor_bytes`. `encoding`
  // must not be xor.
  static Result<ChangeList> Make(Encoding encoding, std::vector<std::byte> payload,
                                 uint64_t tensor_bytes);

  // Changes `window`, the tensor's bytes after the last window; appends the runs of changed bytes,
  // with offsets in the window, in order. Null where the window is the tensor itself: they are not
  // wanted.
  void Apply(MutableByteSpan window, std::vector<ByteRun>* runs);

 private:
  ChangeList(Encoding encoding, std::vector<std::byte> payload);

  uint64_t PositionAt(uint64_t index) const;
  void Sort();
  void ApplyRuns(MutableByteSpan window, std::vector<ByteRun>* runs);
  template <typename Number, bool exclusive_or>
  void ApplySparse(MutableByteSpan window, std::vector<ByteRun>* runs);

  Encoding encoding_;
  std::vector<std::byte> payload_;
  uint64_t window_begin_ = 0;

  // For the runs encoding. The reader refers to payload_, whose memory stays in place when this
  // object is moved.
  RunsReader reader_;
  RunsReader::Run run_;  // the rest of the current run

  // For the sparse encodings.
  size_t number_bytes_ = 0;
  uint64_t count_ = 0;
  uint64_t next_ = 0;  // change
  const std::byte* positions_ = nullptr;
  const std::byte* values_ = nullptr;
};

}  // namespace dws::slime
