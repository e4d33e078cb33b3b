// A trainer's weights on one GPU, brought to the host as captures ask for them. One window of
// blocks at a time is compared on the GPU with the snapshot (device_snapshot.h), and only the
// changes cross PCIe. Some blocks are gathered and copied whole, for the host to compare: the first
// version, blocks with many changes, slices whose snapshot is distrusted.
//
// The host checks what a GPU found against its own snapshot: it recomputes the difference of the
// digests from its own words and the listed changes, and compares it with the difference that the
// GPU computed. If they differ (a flipped bit on either side or in transfer), the block is copied
// whole, which also makes the GPU's copy equal to the host's again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
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
  uint64_t arena_bytes = uint64_t{64} << 20;    // for the changes of one window
  // A block with more changes is copied whole: its list would be about as long.
  uint32_t dense_above = limits::kBlockElements / 8;
  uint64_t spare_bytes = limits::kGpuSpareBytes;
};

// Lifecycle: the memory behind the places stays mapped, and the snapshot alive, while it lives.
// Takes memory on the first Fetch. Call order: Begin, Take any number of times, Fetch. Threads: one
// at a time, except Diffed and View, which several threads may call.
class DeviceShards {
 public:
  using SlicePlace = std::pair<RankSlice, cuda::Place>;

  // `places` ascend by slice. Each base is a multiple of the element size.
  DeviceShards(cuda::CudaDevicePtr device, const std::vector<SlicePlace>& places,
               const DeviceShardsOptions& options);

  // Empties the window. `snapshot` is the same in every call. With kWhole all blocks are copied.
  void Begin(Snapshot& snapshot, FetchAs as);
  // Adds a block of one of the slices to the window. False: the window is full.
  bool Take(BlockRef ref);
  // Brings the window's blocks, inside a capture of them. Does not set `count`. All weights have
  // been read when it returns. RESOURCE_EXHAUSTED, INTERNAL: an error of the GPU; the message names
  // it.
  Result<FetchedBlocks> Fetch(ThreadPool& pool);

  // As in WeightSource, for blocks of the last Fetch. View is not empty where Diffed is nullopt.
  std::optional<DiffedBlock> Diffed(BlockRef ref) const;
  ByteSpan View(BlockRef ref) const;

 private:
  struct Block {
    BlockRef ref;
    uint64_t size_bytes = 0;
    uint64_t copied_at = 0;  // in copied_; unused if `listed`
    bool listed = false;
    DiffedBlock diffed;
  };

  Status Start();
  Result<FetchedBlocks> FetchWindow(ThreadPool& pool);
  // Indexes of the window's blocks that the GPU can compare.
  std::vector<uint32_t> Comparable() const;
  Status Compare(std::span<const uint32_t> blocks);
  cuda::DiffArgs DescribeComparison(std::span<const uint32_t> blocks, uint64_t rooms);
  void CheckFindings(std::span<const uint32_t> blocks, ThreadPool& pool);
  bool CheckFinding(uint32_t number, Block& block, ListedWords& words) const;
  Status CopyWhole(std::span<const uint32_t> blocks);
  // Starts the copies to the host of blocks that were gathered into the GPU's copy.
  Status BringGathered(std::span<const uint32_t> blocks) const;
  uint64_t Number(BlockRef ref) const;

  const cuda::CudaDevicePtr device_;
  const DeviceShardsOptions options_;
  std::vector<cuda::Place> places_;
  std::vector<uint32_t> place_of_;  // by rank slice, up to the last that has a place
  DeviceSnapshot base_;
  Snapshot* snapshot_ = nullptr;
  FetchAs as_ = FetchAs::kChanges;

  bool started_ = false;
  cuda::WorkLane lane_;
  cuda::CudaBuffer device_places_;
  cuda::CudaBuffer device_results_;  // arena bytes used, then DiffResult[]
  cuda::CudaBuffer device_arena_;
  cuda::CudaBuffer results_;  // page-locked, as are the next two
  cuda::CudaBuffer arena_;
  cuda::CudaBuffer copied_;

  std::vector<Block> window_;
  uint64_t window_bytes_ = 0;
  std::vector<uint32_t> window_of_;  // index in window_, by rank block number
};

}  // namespace dws
