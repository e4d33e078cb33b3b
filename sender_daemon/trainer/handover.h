// The two ways in which a trainer hands weights over, as weight sources: resident regions that hold
// every shard, in host or GPU memory, and buckets of a ring that hold pieces of slices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/memory/cuda/ipc/region_import.h"
#include "common/memory/segment_map.h"
#include "common/model/layout.h"
#include "sender_daemon/capture/device_digests.h"
#include "sender_daemon/capture/device_shards.h"
#include "sender_daemon/capture/weight_source.h"

namespace dws {

// The place of a shard: row-major and contiguous; its cut dimension has only the owned slices.
struct ShardPlace {
  uint32_t region = 0;
  uint64_t offset_bytes = 0;
};

// Checks that every slice can be read from its shard, wherever that lies. INVALID_ARGUMENT: a slice
// has two levels of stride; the message names the tensor.
Status CheckReadable(const RankLayout& layout);

// Reads from mapped regions. Owns them.
class ResidentSource final : public WeightSource {
 public:
  // INVALID_ARGUMENT: the places do not match the layout, or a shard reaches beyond its region or
  // begins inside an element; names the tensor.
  static Result<std::unique_ptr<ResidentSource>> Create(const RankLayout& layout,
                                                        std::vector<MappedRegion> regions,
                                                        std::span<const ShardPlace> places,
                                                        const DeviceShardsOptions& options = {});
  // Another source that reads the same memory: for a finer layout of the same shards, and another
  // snapshot. Errors: as Create.
  Result<std::unique_ptr<ResidentSource>> For(const RankLayout& layout,
                                              std::span<const ShardPlace> places,
                                              const DeviceShardsOptions& options = {}) const;
  // Takes the memory that Fetch and, if `lists`, LiveDigests need for GPUs, if it is there, so that
  // no version waits for it.
  void TakeMemory(Snapshot& snapshot, bool lists = false);
  Result<FetchedBlocks> Fetch(std::span<const BlockRef> refs, FetchAs as, Snapshot& snapshot,
                              ThreadPool& pool) override;
  std::optional<DiffedBlock> Diffed(BlockRef ref) const override;
  void Read(BlockRef ref, MutableByteSpan block) const override;
  ByteSpan View(BlockRef ref, size_t size_bytes) const override;

  // All blocks, in the order in which they are best captured: host memory first, then GPU after
  // GPU.
  std::vector<BlockRef> Order(const RankLayout& layout) const;

  // The bytes of a region of the host.
  ByteSpan HostBytes(uint32_t region) const;
  // Where a slice on a GPU begins in its shard, in elements, if it is contiguous there.
  std::optional<uint64_t> BeginsAt(RankSlice slice) const {
    return slices_[slice.value()].begins_at;
  }
  // The digests of slices on GPUs, in their order, of the trainer's memory as it is now: one read
  // of it. Errors as Fetch.
  Result<std::vector<Digest>> LiveDigests(const RankLayout& layout,
                                          std::span<const RankSlice> slices);
  // See DeviceShards::UpdateCopy; for the GPUs that hold one of the blocks.
  void UpdateCopies(std::span<const ListedBlock> blocks, Snapshot& snapshot, ThreadPool& pool);

 private:
  // The place of a slice: in host memory or on a GPU.
  struct SliceHome {
    ConstSegmentMap host;
    DeviceShards* device = nullptr;
    std::optional<uint64_t> begins_at;  // see BeginsAt
  };

  using Regions = std::shared_ptr<const std::vector<MappedRegion>>;

  explicit ResidentSource(Regions regions) : regions_(std::move(regions)) {}
  static Result<std::unique_ptr<ResidentSource>> Make(const RankLayout& layout, Regions regions,
                                                      std::span<const ShardPlace> places,
                                                      const DeviceShardsOptions& options);

  const Regions regions_;  // shared with sources for other layouts
  // Both are destroyed before the regions they read, and parallel.
  std::vector<std::unique_ptr<DeviceShards>> devices_;
  std::vector<std::unique_ptr<DeviceDigests>> digests_;
  std::vector<SliceHome> slices_;  // by rank slice
};

// Consecutive blocks of one slice that lie one after the other in a bucket.
struct BucketPiece {
  RankSlice slice;
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  uint64_t offset_bytes = 0;
};

// Reads from one bucket during its capture. Does not own the bytes.
class BucketSource final : public WeightSource {
 public:
  // INVALID_ARGUMENT: a piece is outside its slice or the bucket, begins inside an element, or two
  // pieces overlap; the message names the tensor.
  static Result<BucketSource> Create(const RankLayout& layout, ByteSpan bucket,
                                     std::vector<BucketPiece> pieces);
  void Read(BlockRef ref, MutableByteSpan block) const override;
  ByteSpan View(BlockRef ref, size_t size_bytes) const override;
  std::vector<BlockRef> Blocks() const;

 private:
  BucketSource(const RankLayout& layout, ByteSpan bucket, std::vector<BucketPiece> pieces)
      : layout_(&layout), bucket_(bucket), pieces_(std::move(pieces)) {}

  const RankLayout* layout_;
  ByteSpan bucket_;
  std::vector<BucketPiece> pieces_;  // ascending by slice and block
};

}  // namespace dws
