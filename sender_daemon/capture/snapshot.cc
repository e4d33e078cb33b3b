// The memory and its stamps are snapshot_memory's; here is what belongs to one version.
#include "sender_daemon/capture/snapshot.h"

#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

std::span<const BlockStamp> StampsOf(const SnapshotMemory& memory,
                                     const RankLayout::SliceEntry& slice, uint32_t first,
                                     uint32_t count) {
  DWS_CHECK(first <= slice.blocks && count <= slice.blocks - first);
  return memory.stamps().subspan(slice.first_block + first, count);
}

}  // namespace

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
      class_tables_(layout_.slice_count()),
      density_watch_(layout_),
      full_watch_(layout_.size_bytes(), layout_.block_count()),
      reads_(layout_, layout_.size_bytes()) {}

bool Snapshot::BlocksAt(RankSlice slice, uint32_t first, uint32_t count,
                        WeightVersion version) const {
  return AllAt(StampsOf(memory(), layout_.slice(slice), first, count), version);
}

bool Snapshot::BlocksBy(RankSlice slice, uint32_t first, uint32_t count,
                        WeightVersion version) const {
  return AllBy(StampsOf(memory(), layout_.slice(slice), first, count), version);
}

std::optional<WeightVersion> Snapshot::replacing() const {
  const uint64_t version = replacing_.load();
  return version == 0 ? std::nullopt : std::optional(WeightVersion(version));
}

// A capture sets captured_ before it ends replacing_, so that no thread sees neither in between.
Snapshot::Stage Snapshot::StageOf(WeightVersion version) const {
  if (replacing_.load() == version.value()) return Stage::kReplacing;
  return captured_.load() >= version.value() ? Stage::kCaptured : Stage::kNeither;
}

void Snapshot::SetReplacing(std::optional<WeightVersion> version) {
  replacing_.store(version.has_value() ? version->value() : 0);
}

std::shared_ptr<OpenDelta> Snapshot::open_delta() const {
  MutexLock lock(open_delta_mutex_);
  return open_delta_;
}

void Snapshot::SetOpenDelta(std::shared_ptr<OpenDelta> delta) {
  MutexLock lock(open_delta_mutex_);
  open_delta_ = std::move(delta);
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
  captured_.store(version.value());
  digests_ = std::move(digests);
}

void Snapshot::Invalidate() {
  version_.reset();
  captured_.store(0);
  digests_.assign(layout_.slice_count(), Digest());
}

}  // namespace dws
