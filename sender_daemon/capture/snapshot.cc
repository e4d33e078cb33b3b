// Slices begin at cache lines, because captures compare whole lines.
#include "sender_daemon/capture/snapshot.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {
constexpr size_t kSliceAlignment = 64;
}  // namespace

Result<std::unique_ptr<Snapshot>> Snapshot::Create(RankLayout layout) {
  std::vector<size_t> offsets;
  size_t size = 0;
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    offsets.push_back(size);
    size += CeilDiv(slice.size_bytes(), kSliceAlignment) * kSliceAlignment;
  }
  size = std::max<size_t>(size, 1);
  void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return ErrnoError(errno, fmt::format("a snapshot of {} bytes cannot be allocated", size));
  }
  (void)::madvise(mapped, size, MADV_HUGEPAGE);  // fewer TLB misses where the kernel allows it
  return std::unique_ptr<Snapshot>(
      new Snapshot(std::move(layout), static_cast<std::byte*>(mapped), size, std::move(offsets)));
}

Snapshot::Snapshot(RankLayout layout, std::byte* bytes, size_t size_bytes,
                   std::vector<size_t> offsets)
    : layout_(std::move(layout)),
      bytes_(bytes),
      size_bytes_(size_bytes),
      offsets_(std::move(offsets)),
      digests_(layout_.slice_count()),
      distrusted_(layout_.slice_count()),
      class_tables_(layout_.slice_count()),
      density_watch_(layout_),
      full_watch_(layout_.size_bytes(), layout_.block_count()),
      reads_(layout_, layout_.size_bytes()) {
  DWS_CHECK(offsets_.size() == layout_.slice_count());
}

Snapshot::~Snapshot() { ::munmap(bytes_, size_bytes_); }

MutableByteSpan Snapshot::SliceBytes(RankSlice slice) {
  return {bytes_ + offsets_[slice.value()], layout_.slice(slice).size_bytes()};
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
  digests_ = std::move(digests);
}

void Snapshot::Invalidate() {
  version_.reset();
  digests_.assign(layout_.slice_count(), Digest());
}

}  // namespace dws
