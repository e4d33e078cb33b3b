#include "sender_daemon/handover.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Bytes of blocks [first, first + count) of a slice.
uint64_t PieceBytes(const RankLayout::SliceEntry& slice, uint32_t first_block,
                    uint32_t block_count) {
  const uint64_t first = uint64_t{first_block} * limits::kBlockElements;
  const uint64_t last =
      std::min(slice.elements, (uint64_t{first_block} + block_count) * limits::kBlockElements);
  return (last - first) * ElementBytes(slice.dtype);
}

}  // namespace

Result<std::unique_ptr<ResidentSource>> ResidentSource::Create(const RankLayout& layout,
                                                               std::vector<HostRegion> regions,
                                                               std::span<const ShardPlace> places) {
  if (places.size() != layout.shards().size()) {
    return InvalidArgumentError("{} places for {} shards of the layout", places.size(),
                                layout.shards().size());
  }
  std::unique_ptr<ResidentSource> source(new ResidentSource(std::move(regions)));
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    const Shard& shard = layout.shards()[slice.shard];
    const TensorSpec& tensor = shard.tensor;
    const ShardPlace& place = places[slice.shard];
    if (place.region >= source->regions_.size()) {
      return InvalidArgumentError("tensor '{}' lies in region {}, only {} were registered",
                                  tensor.name, place.region, source->regions_.size());
    }
    // The shard is an array of its own; a slice of it is narrowed on the cut dimension.
    std::vector<uint64_t> shard_shape = tensor.shape;
    std::vector<uint64_t> slice_shape = tensor.shape;
    uint64_t offset_bytes = place.offset_bytes;
    if (!tensor.shape.empty()) {
      const uint64_t shard_begin = tensor.Slice(shard.first_slice).begin;
      const uint64_t shard_end = tensor.Slice(shard.first_slice + shard.slice_count - 1).end;
      const SliceRange range = tensor.Slice(slice.slice);
      shard_shape[tensor.cut_dim] = shard_end - shard_begin;
      slice_shape[tensor.cut_dim] = range.end - range.begin;
      offset_bytes += (range.begin - shard_begin) * RowMajorStrides(shard_shape)[tensor.cut_dim] *
                      ElementBytes(tensor.dtype);
    }
    DWS_ASSIGN_OR_RETURN(const StridedRuns runs,
                         CoalesceRuns(slice_shape, RowMajorStrides(shard_shape)));
    auto map = ConstSegmentMap::Create(source->regions_[place.region].bytes(), offset_bytes, runs,
                                       ElementBytes(tensor.dtype));
    if (!map.ok()) return Annotate(map.status(), fmt::format("tensor '{}'", tensor.name));
    source->slices_.push_back(*map);
  }
  return source;
}

void ResidentSource::Read(BlockRef ref, MutableByteSpan block) const {
  slices_[ref.slice.value()].Gather(uint64_t{ref.block} * limits::kBlockElements, block);
}

ByteSpan ResidentSource::View(BlockRef ref, size_t size_bytes) const {
  const ConstSegmentMap& slice = slices_[ref.slice.value()];
  return slice.Contiguous(uint64_t{ref.block} * limits::kBlockElements,
                          size_bytes / slice.element_bytes());
}

Result<BucketSource> BucketSource::Create(const RankLayout& layout, ByteSpan bucket,
                                          std::vector<BucketPiece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const BucketPiece& a, const BucketPiece& b) {
    return std::tie(a.slice, a.first_block) < std::tie(b.slice, b.first_block);
  });
  for (size_t i = 0; i < pieces.size(); ++i) {
    const BucketPiece& piece = pieces[i];
    if (piece.slice.value() >= layout.slice_count()) {
      return InvalidArgumentError("a piece names rank slice {}, the layout has {}",
                                  piece.slice.value(), layout.slice_count());
    }
    const RankLayout::SliceEntry& slice = layout.slice(piece.slice);
    const std::string& name = layout.tensor(piece.slice).name;
    if (piece.first_block > slice.blocks || piece.block_count > slice.blocks - piece.first_block) {
      return InvalidArgumentError(
          "tensor '{}': blocks {} + {} are outside the {} blocks of slice {}", name,
          piece.first_block, piece.block_count, slice.blocks, slice.slice);
    }
    const uint64_t size = PieceBytes(slice, piece.first_block, piece.block_count);
    if (piece.offset_bytes > bucket.size() || size > bucket.size() - piece.offset_bytes) {
      return InvalidArgumentError(
          "tensor '{}': {} bytes at offset {} are outside the bucket of {} bytes", name, size,
          piece.offset_bytes, bucket.size());
    }
    if (i > 0 && pieces[i - 1].slice == piece.slice &&
        pieces[i - 1].first_block + pieces[i - 1].block_count > piece.first_block) {
      return InvalidArgumentError("tensor '{}': block {} of slice {} is handed over twice", name,
                                  piece.first_block, slice.slice);
    }
  }
  return BucketSource(layout, bucket, std::move(pieces));
}

void BucketSource::Read(BlockRef ref, MutableByteSpan block) const {
  std::memcpy(block.data(), View(ref, block.size()).data(), block.size());
}

ByteSpan BucketSource::View(BlockRef ref, size_t size_bytes) const {
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), ref,
                                [](const BlockRef& wanted, const BucketPiece& candidate) {
                                  return std::tie(wanted.slice, wanted.block) <
                                         std::tie(candidate.slice, candidate.first_block);
                                });
  DWS_CHECK(piece != pieces_.begin());
  --piece;
  DWS_CHECK(piece->slice == ref.slice && ref.block - piece->first_block < piece->block_count);
  const uint64_t offset =
      piece->offset_bytes +
      PieceBytes(layout_->slice(ref.slice), piece->first_block, ref.block - piece->first_block);
  return bucket_.subspan(offset, size_bytes);
}

std::vector<BlockRef> BucketSource::Blocks() const {
  std::vector<BlockRef> refs;
  for (const BucketPiece& piece : pieces_) {
    for (uint32_t i = 0; i < piece.block_count; ++i) {
      refs.push_back({.slice = piece.slice, .block = piece.first_block + i});
    }
  }
  return refs;
}

}  // namespace dws
