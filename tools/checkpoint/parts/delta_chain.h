// Applies delta objects to the blocks of a checkpoint, one delta after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/objects/object_header.h"
#include "common/formats/mapped_file.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"
#include "tools/checkpoint/parts/block_source.h"

namespace dws::checkpoint {

// One delta object in a file. Lifecycle: open until destroyed. Threads: const methods from any.
class DeltaFile {
 public:
  // DATA_LOSS: damaged, cut off, or with bytes after its end. FAILED_PRECONDITION: made for other
  // tensors than those of `layout`. Others: as MappedFile.
  static Result<DeltaFile> Open(const std::string& path, const RankLayout& layout);

  const std::string& path() const { return mapping_.path(); }
  const DeltaManifest& manifest() const { return manifest_; }
  uint64_t size_bytes() const { return mapping_.bytes().size(); }
  ByteSpan Frame(const FrameEntry& entry) const;
  // nullptr: the delta does not change the slice.
  const SliceDelta* Find(RankSlice slice) const;

 private:
  explicit DeltaFile(MappedFile mapping) : mapping_(std::move(mapping)) {}

  MappedFile mapping_;
  ObjectHeader header_;
  DeltaManifest manifest_;
};

// Opens deltas that follow each other. FAILED_PRECONDITION: the base version or weights of a delta
// are not the result of those before it, or it is of another stream; the message names both files.
// Others: as DeltaFile.
Result<std::vector<DeltaFile>> OpenChain(std::span<const std::string> paths,
                                         const RankLayout& layout);

// The blocks of a checkpoint before and after a chain. Lifecycle: all arguments of the constructor
// must outlive it.
class ChainSource final : public BlockSource {
 public:
  // `base[i]` is rank slice i of `layout`, which the deltas were opened with. `worker_count` is
  // that of the pool that reads.
  ChainSource(const RankLayout& layout, std::vector<ByteSpan> base,
              std::span<const DeltaFile> chain, size_t worker_count);
  ~ChainSource() override;

  size_t link_count() const { return chain_.size(); }
  ByteSpan Before(RankSlice slice, uint32_t block) const {
    return BlockOf(layout_.slice(slice), block, base_[slice.value()]);
  }

  // DATA_LOSS: a delta's frame is damaged, or its block does not fit the old bytes.
  Result<BlockStates> Read(RankSlice slice, uint32_t block, size_t worker) override;

  // Like Read, but also sets `differences[i]` to the difference that delta i makes to
  // the block's digest.
  Result<BlockStates> Follow(RankSlice slice, uint32_t block, size_t worker,
                             std::span<Digest> differences);

 private:
  struct Scratch;
  // Returns the encoded block in one delta; kEmpty if the delta does not change it.
  Result<EncodedBlockView> Find(const DeltaFile& delta, size_t link, const SliceDelta& slice,
                                uint32_t block, Scratch& scratch);

  const RankLayout& layout_;
  const std::vector<ByteSpan> base_;
  const std::span<const DeltaFile> chain_;
  std::vector<std::unique_ptr<Scratch>> scratch_;  // by worker
};

}  // namespace dws::checkpoint
