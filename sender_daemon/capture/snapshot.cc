// The memory and its stamps are snapshot_memory's; here is what belongs to one version.
#include "sender_daemon/capture/snapshot.h"

#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {

Result<std::unique_ptr<Snapshot>> Snapshot::Create(RankLayout layout, bool huge_pages) {
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<SnapshotMemory> memory,
                       SnapshotMemory::Create(layout, huge_pages));
  return std::unique_ptr<Snapshot>(new Snapshot(std::move(layout), std::move(memory), huge_pages));
}

Snapshot::Snapshot(RankLayout layout, std::unique_ptr<SnapshotMemory> memory, bool huge_pages)
    : layout_(std::move(layout)),
      huge_pages_(huge_pages),
      memory_(std::move(memory)),
      digests_(layout_.slice_count()),
      distrusted_(layout_.slice_count()),
      history_(layout_),
      reads_(layout_, layout_.size_bytes()) {}

std::span<const BlockStamp> Snapshot::Stamps(RankSlice slice, uint32_t first,
                                             uint32_t count) const {
  const RankLayout::SliceEntry& entry = layout_.slice(slice);
  DWS_CHECK(first <= entry.blocks && count <= entry.blocks - first);
  return memory().stamps().subspan(entry.first_block + first, count);
}

MutableByteSpan Snapshot::SliceBytes(RankSlice slice) {
  return memory_->content().subspan(memory_->places().slice_offset(slice),
                                    layout_.slice(slice).size_bytes());
}

MutableByteSpan Snapshot::BlockBytes(RankSlice slice, uint32_t block) {
  const RankLayout::SliceEntry& entry = layout_.slice(slice);
  DWS_CHECK(block < entry.blocks);
  const size_t element_bytes = ElementBytes(entry.dtype);
  return SliceBytes(slice).subspan(size_t{block} * limits::kBlockElements * element_bytes,
                                   BlockElements(entry.elements, block) * element_bytes);
}

Digest Snapshot::DigestBlocks(RankSlice slice, uint32_t first, uint32_t end) {
  const RankLayout::SliceEntry& entry = layout_.slice(slice);
  DWS_CHECK(first <= end && end <= entry.blocks);
  Digest digest;
  for (uint32_t block = first; block < end; ++block) {
    digest += DigestBytes(BlockBytes(slice, block), entry.BlockFirstWord(block));
  }
  return digest;
}

void Snapshot::SetVersion(WeightVersion version, std::vector<Digest> digests) {
  DWS_CHECK(digests.size() == layout_.slice_count());
  DWS_CHECK(!newest_.has_value() || *newest_ < version);
  version_ = newest_ = version;
  in_flight_.SetCaptured(version);
  digests_ = std::move(digests);
  history_.gpu_copies->Settle(version);
}

void Snapshot::Invalidate() {
  version_.reset();
  in_flight_.SetCaptured(std::nullopt);
  digests_.assign(layout_.slice_count(), Digest());
}

}  // namespace dws
