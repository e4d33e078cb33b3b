// One delta of a chain: the parsed manifest, and a function that reads its frames from wherever
// they are kept. Squashing and undoing read blocks through it.
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

// One delta of a chain, with access to its frames.
struct DeltaLink {
  const DeltaManifest* manifest = nullptr;  // must outlive the link
  // The bytes of one of the manifest's frames: in memory that outlives the link's use, or in
  // `buffer`. Their checksum has not been checked.
  std::function<Result<ByteSpan>(const FrameEntry& entry, std::vector<std::byte>& buffer)> frame;
};

// Returns the class table of the slice's class-split blocks; nullptr: the delta has none for it.
const ClassTable* ClassesOf(const DeltaLink& link, RankSlice slice);
// Returns whether any slice has class-split blocks: only a reader with the old weights can decode
// those.
bool NeedsOldWeights(const DeltaLink& link);

// Encoded blocks of one slice, with the memory that some of the views point to. Reused.
struct LinkBlocks {
  std::vector<EncodedBlockView> views;
  std::vector<std::vector<std::byte>> buffers;
};

// Finds the encoded blocks [first_block, first_block + count) of one slice; A block that the delta
// did not change has mode kEmpty. DATA_LOSS: a frame is damaged. Other errors are those of `frame`.
Status FindBlocks(const DeltaLink& link, RankSlice slice, uint32_t first_block, uint32_t count,
                  LinkBlocks& blocks);

// Finds blocks of one delta for callers that ask for them in order. It keeps the last frame, so
// each frame is read once. Threads: one.
class LastFrame {
 public:
  // Returns the block, or kEmpty if the delta did not change it. `read` returns views of a frame's
  // blocks from the frame's entry; its errors are returned. The view is valid until the next call
  // of `read`.
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

  const FrameEntry* entry_ = nullptr;  // of the frame in views_
  std::vector<EncodedBlockView> views_;
};

// Finds the same blocks as FindBlocks, one at a time. Threads: one.
class LinkReader {
 public:
  explicit LinkReader(DeltaLink link) : link_(std::move(link)) {}

  // Returns the block, or kEmpty if the delta did not change it. The view is valid until the next
  // call. Errors as FindBlocks.
  Result<EncodedBlockView> Find(RankSlice slice, uint32_t block);

  const DeltaLink& link() const { return link_; }

 private:
  DeltaLink link_;
  LastFrame frame_;
  std::vector<std::byte> buffer_;  // the frame's bytes
};

}  // namespace dws
