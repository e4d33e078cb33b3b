// Checks the chunks of an object as they arrive.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "proto/objects.pb.h"

namespace dws {

// Lifecycle: of one call. Threads: one at a time.
class ObjectChunks {
 public:
  explicit ObjectChunks(uint64_t size_bytes_max) : size_bytes_max_(size_bytes_max) {}

  // True before the first chunk.
  bool first() const { return first_; }
  // The next chunk. OUT_OF_RANGE: the object has more bytes than wanted. DATA_LOSS: the chunk is
  // none of an object.
  Status Add(const v1::ObjectChunk& chunk);
  // There are no more. DATA_LOSS: the object has arrived damaged, or in part.
  Status Finish() const;

 private:
  const uint64_t size_bytes_max_;
  bool first_ = true;
  uint64_t size_bytes_ = 0;
  uint64_t received_ = 0;
  Digest told_;
  Digest digest_;
};

}  // namespace dws
