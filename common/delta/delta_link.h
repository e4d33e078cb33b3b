// One delta of a chain, wherever its bytes are kept: the parsed manifest, and how to get at its
// frames. What squashing and undoing read blocks through.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/block.h"
#include "common/model/delta_manifest.h"

namespace dws {

struct DeltaLink {
  const DeltaManifest* manifest = nullptr;  // outlives it
  // The bytes of one of the manifest's frames: in memory that outlives the link's use, or in
  // `buffer`. Their checksum has not been looked at.
  std::function<Result<ByteSpan>(const FrameEntry& entry, std::vector<std::byte>& buffer)> frame;
};

// Encoded blocks of one slice, with the memory that some of them look into. Reused.
struct LinkBlocks {
  std::vector<EncodedBlockView> views;
  std::vector<std::vector<std::byte>> buffers;
};

// The encoded blocks [first_block, first_block + count) of one slice; kEmpty where the delta
// changed nothing. DATA_LOSS: a frame is damaged. What `frame` returns.
Status FindBlocks(const DeltaLink& link, RankSlice slice, uint32_t first_block, uint32_t count,
                  LinkBlocks& blocks);

// The same one block after the other, for whoever asks for them in order, a few at a time: keeps
// the frame it looked into last, so each is read once. Threads: one.
class LinkReader {
 public:
  explicit LinkReader(DeltaLink link) : link_(std::move(link)) {}

  // kEmpty where the delta changed nothing. Valid until the next call. Errors as FindBlocks.
  Result<EncodedBlockView> Find(RankSlice slice, uint32_t block);

 private:
  DeltaLink link_;
  const FrameEntry* entry_ = nullptr;  // of the frame that is kept
  std::vector<std::byte> buffer_;
  std::vector<EncodedBlockView> views_;
};

}  // namespace dws
