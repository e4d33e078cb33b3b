#include "sender_daemon/trainer/handover.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/model/limits.h"
#include "sender_daemon/capture/capture.h"

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

// The memory of one slice, inside its region.
struct SliceMemory {
  uint64_t offset_bytes = 0;
  StridedRuns runs;
  uint32_t element_bytes = 1;
};

// The shard is an array; a slice of it is narrower on the dimensions that are cut.
Result<SliceMemory> FindSlice(const RankLayout& layout, const RankLayout::SliceEntry& slice,
                              const ShardPlace& place) {
  const Shard& shard = layout.shards()[slice.shard];
  const uint32_t element_bytes = ElementBytes(shard.tensor.dtype);
  const std::vector<DimRange> owned = RangesOf(shard.tensor, shard.cells);
  DWS_ASSIGN_OR_RETURN(const BoxRuns box, RunsWithin(owned, shard.tensor.Slice(slice.slice),
                                                     RowMajorStrides(ShapeOf(owned))));
  return SliceMemory{.offset_bytes = place.offset_bytes + box.first_element * element_bytes,
                     .runs = box.runs,
                     .element_bytes = element_bytes};
}

// Elements are read as words of their size. Host memory begins at a page; GPU memory may not.
Status CheckAligned(std::string_view tensor, uint64_t offset_bytes, uint32_t element_bytes) {
  if (offset_bytes % element_bytes == 0) return OkStatus();
  return InvalidArgumentError(
      "tensor '{}': its memory begins at byte {}: expected a multiple of the {} bytes of an "
      "element",
      tensor, offset_bytes, element_bytes);
}

Result<cuda::Place> DevicePlace(const cuda::CudaRegion& region, const SliceMemory& memory) {
  DWS_RETURN_IF_ERROR(
      CheckRuns(region.size_bytes(), memory.offset_bytes, memory.runs, memory.element_bytes));
  const uint64_t base = region.address() + memory.offset_bytes;
  if (base % memory.element_bytes != 0) {
    return InvalidArgumentError(
        "its memory on {} begins at offset {} of the region: expected a multiple of the {} bytes "
        "of "
        "an element",
        region.device()->uuid(), memory.offset_bytes, memory.element_bytes);
  }
  return cuda::Place{.base = base,
                     .run_elements = memory.runs.run_elements,
                     .stride_elements = memory.runs.stride_elements};
}

// The slices that lie on one GPU.
struct OnDevice {
  cuda::CudaDevicePtr device;
  std::vector<DeviceShards::SlicePlace> places;
};

}  // namespace

Status CheckReadable(const RankLayout& layout) {
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const Result<SliceMemory> found = FindSlice(layout, layout.slice(RankSlice(s)), {});
    if (found.ok()) continue;
    return Annotate(found.status(), fmt::format("tensor '{}'", layout.tensor(RankSlice(s)).name));
  }
  return OkStatus();
}

Result<std::unique_ptr<ResidentSource>> ResidentSource::Create(const RankLayout& layout,
                                                               std::vector<MappedRegion> regions,
                                                               std::span<const ShardPlace> places,
                                                               const DeviceShardsOptions& options) {
  return Make(layout, std::make_shared<const std::vector<MappedRegion>>(std::move(regions)), places,
              options);
}

Result<std::unique_ptr<ResidentSource>> ResidentSource::For(
    const RankLayout& layout, std::span<const ShardPlace> places,
    const DeviceShardsOptions& options) const {
  return Make(layout, regions_, places, options);
}

Result<std::unique_ptr<ResidentSource>> ResidentSource::Make(const RankLayout& layout,
                                                             Regions regions,
                                                             std::span<const ShardPlace> places,
                                                             const DeviceShardsOptions& options) {
  if (places.size() != layout.shards().size()) {
    return InvalidArgumentError("{} places for {} shards of the layout", places.size(),
                                layout.shards().size());
  }
  std::unique_ptr<ResidentSource> source(new ResidentSource(std::move(regions)));
  std::map<std::string, OnDevice> devices;  // by UUID
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    const std::string& name = layout.tensor(RankSlice(s)).name;
    const ShardPlace& place = places[slice.shard];
    source->slices_.emplace_back();
    if (place.region >= source->regions_->size()) {
      return InvalidArgumentError("tensor '{}' lies in region {}, only {} were registered", name,
                                  place.region, source->regions_->size());
    }
    const Result<SliceMemory> found = FindSlice(layout, slice, place);
    if (!found.ok()) return Annotate(found.status(), fmt::format("tensor '{}'", name));
    const SliceMemory& memory = *found;
    const MappedRegion& region = (*source->regions_)[place.region];
    DWS_RETURN_IF_ERROR(CheckAligned(name, memory.offset_bytes, memory.element_bytes));
    if (const auto* host = std::get_if<HostRegion>(&region)) {
      auto map = ConstSegmentMap::Create(host->bytes(), memory.offset_bytes, memory.runs,
                                         memory.element_bytes);
      if (!map.ok()) return Annotate(map.status(), fmt::format("tensor '{}'", name));
      source->slices_.back().host = *map;
      continue;
    }
    const auto& on_device = std::get<cuda::CudaRegion>(region);
    const Result<cuda::Place> at = DevicePlace(on_device, memory);
    if (!at.ok()) return Annotate(at.status(), fmt::format("tensor '{}'", name));
    OnDevice& device = devices[on_device.device()->uuid()];
    device.device = on_device.device();
    device.places.emplace_back(RankSlice(s), *at);
    if (memory.runs.run_elements >= slice.elements) {
      source->slices_.back().begins_at =
          (memory.offset_bytes - place.offset_bytes) / memory.element_bytes;
    }
  }
  for (auto& [uuid, device] : devices) {
    source->digests_.push_back(std::make_unique<DeviceDigests>(device.device, device.places));
    source->devices_.push_back(
        std::make_unique<DeviceShards>(std::move(device.device), device.places, options));
    for (const auto& [slice, place] : device.places) {
      source->slices_[slice.value()].device = source->devices_.back().get();
    }
  }
  DWS_CHECK(source->slices_.size() == layout.slice_count());
  return source;
}

// A failure is not told here: memory may be free again by the first version, whose Fetch tells it.
void ResidentSource::TakeMemory(Snapshot& snapshot, bool lists) {
  for (const auto& device : devices_) (void)device->TakeMemory(snapshot);
  for (const auto& digests : digests_) {
    if (lists) (void)digests->TakeMemory();
  }
}

// Takes as many consecutive blocks as have the same home (Order).
Result<FetchedBlocks> ResidentSource::Fetch(std::span<const BlockRef> refs, FetchAs as,
                                            Snapshot& snapshot, ThreadPool& pool) {
  DeviceShards* const device = slices_[refs.front().slice.value()].device;
  const auto end = std::ranges::find_if_not(
      refs, [&](const BlockRef& ref) { return slices_[ref.slice.value()].device == device; });
  const auto of_device = refs.first(static_cast<size_t>(end - refs.begin()));
  if (device == nullptr) return FetchedBlocks{.count = of_device.size()};
  return device->Fetch(of_device, as, snapshot, pool);
}

std::vector<BlockRef> ResidentSource::Order(const RankLayout& layout) const {
  std::vector<BlockRef> refs = AllBlocks(layout);
  if (devices_.empty()) return refs;
  std::ranges::stable_sort(refs, [this](const BlockRef& a, const BlockRef& b) {
    return slices_[a.slice.value()].device < slices_[b.slice.value()].device;
  });
  return refs;
}

ByteSpan ResidentSource::HostBytes(uint32_t region) const {
  DWS_CHECK(region < regions_->size());
  return std::get<HostRegion>((*regions_)[region]).bytes();
}

Result<std::vector<Digest>> ResidentSource::LiveDigests(const RankLayout& layout,
                                                        std::span<const RankSlice> slices) {
  std::vector<Digest> digests(slices.size());
  for (size_t d = 0; d < devices_.size(); ++d) {
    std::vector<RankSlice> own;
    std::vector<size_t> of;  // parallel: indexes in `slices`
    for (size_t i = 0; i < slices.size(); ++i) {
      if (slices_[slices[i].value()].device != devices_[d].get()) continue;
      own.push_back(slices[i]);
      of.push_back(i);
    }
    if (own.empty()) continue;
    DWS_ASSIGN_OR_RETURN(const std::vector<Digest> found, digests_[d]->Of(layout, own));
    for (size_t i = 0; i < of.size(); ++i) digests[of[i]] = found[i];
  }
  return digests;
}

void ResidentSource::UpdateCopies(std::span<const ListedBlock> blocks, Snapshot& snapshot,
                                  ThreadPool& pool) {
  for (const auto& device : devices_) {
    std::vector<ListedBlock> own;
    std::ranges::copy_if(blocks, std::back_inserter(own),
                         [&](const ListedBlock& block) { return device->Has(block.ref.slice); });
    if (!own.empty()) device->UpdateCopy(own, snapshot, pool);
  }
}

std::optional<DiffedBlock> ResidentSource::Diffed(BlockRef ref) const {
  const DeviceShards* const device = slices_[ref.slice.value()].device;
  return device == nullptr ? std::nullopt : device->Diffed(ref);
}

void ResidentSource::Read(BlockRef ref, MutableByteSpan block) const {
  const SliceHome& home = slices_[ref.slice.value()];
  if (home.device == nullptr) {
    home.host.Gather(uint64_t{ref.block} * limits::kBlockElements, block);
  } else {
    const ByteSpan view = home.device->View(ref);
    DWS_CHECK(view.size() == block.size());
    std::memcpy(block.data(), view.data(), block.size());
  }
}

ByteSpan ResidentSource::View(BlockRef ref, size_t size_bytes) const {
  const SliceHome& home = slices_[ref.slice.value()];
  if (home.device != nullptr) return home.device->View(ref);
  return home.host.Contiguous(uint64_t{ref.block} * limits::kBlockElements,
                              size_bytes / home.host.element_bytes());
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
    const uint32_t element_bytes = ElementBytes(slice.dtype);
    DWS_RETURN_IF_ERROR(CheckAligned(name, piece.offset_bytes, element_bytes));
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
  DWS_CHECK(offset <= bucket_.size() && size_bytes <= bucket_.size() - offset);
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
