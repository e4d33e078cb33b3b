// Makes the entry of one tensor in a version folder (payload.h) from its bytes before and after,
// piece by piece, so that the tensor need not be in memory. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/digest/checksum.h"
#include "common/formats/slime_delta/entry_compressor.h"
#include "common/formats/slime_delta/payload.h"
#include "common/formats/slime_delta/runs.h"

namespace dws::slime {

// Lifecycle: Create, Add for each piece from the tensor's first byte to its last, then Finish once.
// Threads: one at a time. Memory: the entry, and of another encoding than xor the payload, twice
// for a moment at Finish.
class EntryBuilder {
 public:
  struct Entry {
    std::string digest;            // of the bytes after
    std::vector<std::byte> bytes;  // compressed
  };

  // INVALID_ARGUMENT: the encoding cannot carry such a tensor, or DWS does not write it.
  static Result<EntryBuilder> Create(Encoding encoding, ChecksumFormat checksum,
                                     uint64_t tensor_bytes);

  // The next bytes, before and after.
  void Add(ByteSpan before, ByteSpan after);
  // Returns nullopt if no byte has changed. With `unchanged_too`, an unchanged tensor also gets an
  // entry, which proves the bytes that the delta is applied to; then only a tensor without bytes
  // gives nullopt. INVALID_ARGUMENT: overwrite cannot count so many changes.
  Result<std::optional<Entry>> Finish(bool unchanged_too = false);

 private:
  EntryBuilder(Encoding encoding, ChecksumFormat checksum, uint64_t tensor_bytes);
  void AddWindow(ByteSpan before, ByteSpan after);

  Encoding encoding_;
  uint64_t tensor_bytes_;
  uint64_t added_ = 0;  // bytes
  bool changed_ = false;
  Checksum digest_;
  std::optional<EntryCompressor> xor_;
  std::vector<std::byte> difference_;  // of xor: a window
  OverwriteWriter overwrite_;
  RunsWriter runs_;  // of dws_runs
};

}  // namespace dws::slime
