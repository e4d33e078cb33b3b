// Makes the entry of one changed tensor (payload.h) from its payload, piece by piece.
#pragma once

#include <zstd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/bytes.h"

namespace dws::slime {

// Lifecycle: Add until the whole payload is added, then Finish once. Threads: one at a time.
// Memory: the entry, and what zstd needs at its level.
class EntryCompressor {
 public:
  EntryCompressor(uint64_t payload_bytes, int level);

  void Add(ByteSpan piece);
  // One zstd frame that states its content size.
  std::vector<std::byte> Finish();

 private:
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };

  // Compresses until all of `piece` is taken or, at the end, all is written.
  void Compress(ByteSpan piece, ZSTD_EndDirective directive);

  std::unique_ptr<ZSTD_CCtx, Free> context_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> entry_;
};

}  // namespace dws::slime
