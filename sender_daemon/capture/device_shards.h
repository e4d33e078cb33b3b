// A trainer's weights on one GPU, brought to the host as captures ask for them. A window of blocks
// at a time is compared on the GPU with the snapshot (device_snapshot.h), and only what changed
// crosses PCIe. What cannot be compared is gathered and copied whole, for the host to compare: the
// first version, blocks that change much, slices whose snapshot is distrusted.
//
// A GPU's findings count only where they lead from the host's own snapshot: the difference of the
// digests is recomputed from the host's words and the listed changes, and has to be the one that
// the GPU saw. Where it is not (a flipped bit on either side, or on the way) the block is copied
// whole, which also brings the GPU's copy back to the host's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/work_lane.h"
#include "common/model/limits.h"
#include "sender_daemon/capture/device_snapshot.h"
#include "sender_daemon/capture/listed_changes.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/capture/weight_source.h"

namespace dws {

struct DeviceShardsOptions {
  uint64_t window_bytes = uint64_t{128} << 20;  // at least the widest block
  uint64_t arena_bytes = uint64_t{64} << 20;    // of changes of one window
  // A block with more changes is copied whole: its list would be about as long.
  uint32_t dense_above = limits::kBlockElements / 8;
  uint64_t spare_bytes = limits::kGpuSpareBytes;
};

// Lifecycle: while the memory behind the places is mapped, and no longer than the snapshot; takes
// memory with the first Fetch. Between two Fetches: Begin, Take any number of times. Threads: one
// at a time, but Diffed and View from several.
class DeviceShards {
 public:
  using SlicePlace = std::pair<RankSlice, cuda::Place>;

  // `places` ascending by slice; bases are multiples of the elements' bytes.
  DeviceShards(cuda::CudaDevicePtr device, const std::vector<SlicePlace>& places,
               const DeviceShardsOptions& options);

  // Empties the window, for blocks of `snapshot`: the same every time.
  void Begin(Snapshot& snapshot);
  // Adds a block of one of the slices to the window. False: the window is full.
  bool Take(BlockRef ref);
  // Brings the window's blocks, inside a capture of them. `count` is not filled in. Everything has
  // been read when it returns. RESOURCE_EXHAUSTED, INTERNAL: the GPU's; names it.
  Result<FetchedBlocks> Fetch(ThreadPool& pool);

  // As WeightSource; of the blocks of the last Fetch. View is not empty where Diffed is nullopt.
  std::optional<DiffedBlock> Diffed(BlockRef ref) const;
  ByteSpan View(BlockRef ref) const;

 private:
  struct Block {
    BlockRef ref;
    uint64_t size_bytes = 0;
    uint64_t copied_at = 0;  // in copied_, unless it is listed
    bool listed = false;
    DiffedBlock diffed;
  };

  Status Start();
  Result<FetchedBlocks> FetchWindow(ThreadPool& pool);
  // Indexes of the window's blocks that may be compared.
  std::vector<uint32_t> Comparable() const;
  Status Compare(std::span<const uint32_t> blocks);
  cuda::DiffArgs DescribeComparison(std::span<const uint32_t> blocks, uint64_t rooms);
  void CheckFindings(std::span<const uint32_t> blocks, ThreadPool& pool);
  bool CheckFinding(uint32_t number, Block& block, ListedWords& words) const;
  Status CopyWhole(std::span<const uint32_t> blocks);
  // Starts the copies of what was gathered into the GPU's copy of the snapshot.
  Status BringGathered(std::span<const uint32_t> blocks) const;
  uint64_t Number(BlockRef ref) const;

  const cuda::CudaDevicePtr device_;
  const DeviceShardsOptions options_;
  std::vector<cuda::Place> places_;
  std::vector<uint32_t> place_of_;  // by rank slice, as far as there are places
  DeviceSnapshot base_;
  Snapshot* snapshot_ = nullptr;

  bool started_ = false;
  cuda::WorkLane lane_;
  cuda::CudaBuffer device_places_;
  cuda::CudaBuffer device_results_;  // how much of the arena is used, then DiffResult[]
  cuda::CudaBuffer device_arena_;
  cuda::CudaBuffer results_;  // the same three, page-locked
  cuda::CudaBuffer arena_;
  cuda::CudaBuffer copied_;

  std::vector<Block> window_;
  uint64_t window_bytes_ = 0;
  std::vector<uint32_t> window_of_;  // by rank block number; in window_
};

}  // namespace dws
