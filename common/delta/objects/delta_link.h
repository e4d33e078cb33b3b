// One delta of a chain, wherever its bytes are kept: the parsed manifest, and how to get at its
// frames. What squashing and undoing read blocks through.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
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

// One block of a slice after the other, for whoever asks for them in order: keeps the frame that it
// looked into last, so each is read once. Of one delta. Threads: one.
class LastFrame {
 public:
  // kEmpty where the delta changed nothing. `read`: the views of a frame's blocks, from its entry;
  // its errors are returned. The view is of what `read` has read last.
  template <typename Read>
  Result<EncodedBlockView> Find(const SliceDelta& slice, uint32_t block, const Read& read) {
    const FrameEntry* const entry = EntryOf(slice, block);
    if (entry == nullptr) return EncodedBlockView();
    if (entry_ != entry) {
      entry_ = nullptr;
      DWS_ASSIGN_OR_RETURN(views_, read(*entry));
      entry_ = entry;
    }
    return views_[block - entry->first_block];
  }

 private:
  // nullptr: none of the slice's frames has the block.
  static const FrameEntry* EntryOf(const SliceDelta& slice, uint32_t block);

  const FrameEntry* entry_ = nullptr;  // of the frame that is kept
  std::vector<EncodedBlockView> views_;
};

// The blocks of FindBlocks, a few at a time. Threads: one.
class LinkReader {
 public:
  explicit LinkReader(DeltaLink link) : link_(std::move(link)) {}

  // kEmpty where the delta changed nothing. Valid until the next call. Errors as FindBlocks.
  Result<EncodedBlockView> Find(RankSlice slice, uint32_t block);

 private:
  DeltaLink link_;
  LastFrame frame_;
  std::vector<std::byte> buffer_;  // its bytes
};

}  // namespace dws
