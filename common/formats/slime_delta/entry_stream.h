// Reads the payload in the entry of one changed tensor (payload.h) piece by piece, without having
// the entry or the payload in memory.
#pragma once

#include <zstd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/payload.h"

namespace dws::slime {

// A reader of an entry's bytes, wherever they are stored.
struct EntrySource {
  uint64_t size_bytes = 0;
  // Fills `to` with its bytes from `offset` on.
  std::function<Status(uint64_t offset, MutableByteSpan to)> read;
};

// An entry in memory that outlives the source.
EntrySource MemorySource(ByteSpan entry);

// Lifecycle: Read until all of the payload is read, then Finish. Threads: one at a time. Memory:
// the window of the zstd frame, at most the payload, and a buffer.
class EntryStream {
 public:
  // Reads the beginning of the entry of a tensor of `tensor_bytes`. Errors as DecodeEntry, and of
  // the source.
  static Result<EntryStream> Open(Encoding encoding, EntrySource source, uint64_t tensor_bytes);

  uint64_t payload_bytes() const { return payload_bytes_; }
  // Fills `to` with the next bytes of the payload. DATA_LOSS: the frame is damaged, or has fewer.
  Status Read(MutableByteSpan to);
  // DATA_LOSS: the entry has more than the payload that its frame states, all of which was read.
  Status Finish();

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  explicit EntryStream(EntrySource source);
  Status Fill();

  EntrySource source_;
  std::unique_ptr<ZSTD_DCtx, Free> context_;
  std::vector<std::byte> buffer_;  // of compressed bytes
  ZSTD_inBuffer input_ = {};       // in buffer_
  uint64_t next_ = 0;              // of the entry, not in buffer_ yet
  uint64_t payload_bytes_ = 0;
  bool ended_ = false;  // the frame
};

}  // namespace dws::slime
