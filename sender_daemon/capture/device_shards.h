// A trainer's weights on one GPU. They are brought to the host as captures ask for them. Windows of
// blocks are compared on the GPU with the snapshot (device_snapshot.h), and only the changes cross
// PCIe. While the host checks one window, the GPU compares the next, and goes on to the end or
// until there is no room for the lists. After that the trainer's memory has been read, and may
// change while the host encodes. Some blocks are gathered and copied whole, for the host to
// compare: blocks with many changes, slices whose snapshot is distrusted. All blocks of first and
// full versions are: one window crosses PCIe while the host stores the one before.
//
// The host checks what a GPU found against its own snapshot: it recomputes the difference of the
// digests from its own words and the listed changes, and compares it with the difference that the
// GPU computed. If they differ (a flipped bit on either side or in transfer), the block is copied
// whole, which also makes the GPU's copy equal to the host's again. All of this happens before the
// trainer goes on, so nothing that is done afterwards can fail.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/memory/cuda/work_lane.h"
#include "common/model/limits.h"
#include "sender_daemon/capture/copy_update.h"
#include "sender_daemon/capture/device_snapshot.h"
#include "sender_daemon/capture/listed_changes.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/capture/weight_source.h"

namespace dws {

struct DeviceShardsOptions {
  uint64_t window_bytes = uint64_t{128} << 20;  // at least two of the widest block
  uint64_t arena_bytes = uint64_t{64} << 20;    // for the changes of one window
  // Page-locked memory for the changes of all windows: one part in so many of the weights, at most
  // list_bytes_max, at least arena_bytes. A sixteenth has room for 2 % of BF16 weights.
  uint64_t list_part = 16;
  uint64_t list_bytes_max = uint64_t{1} << 30;
  // A block with more changes is copied whole: its list would be about as long.
  uint32_t dense_above = limits::kBlockElements / 8;
  uint64_t spare_bytes = limits::kGpuSpareBytes;
  // Shared by all sources of one sender.
  std::shared_ptr<LeftCopies> left_copies = std::make_shared<LeftCopies>();
};

// Lifecycle: the memory behind the places stays mapped, and the snapshot alive, while it lives.
// Threads: one at a time, except Diffed and View, which several threads may call.
class DeviceShards {
 public:
  using SlicePlace = std::pair<RankSlice, cuda::Place>;

  // `places` ascend by slice. Each base is a multiple of the element size.
  DeviceShards(cuda::CudaDevicePtr device, const std::vector<SlicePlace>& places,
               const DeviceShardsOptions& options);

  bool Has(RankSlice slice) const {
    return slice.value() < place_of_.size() && place_of_[slice.value()] != kNoPlace;
  }

  // Takes the memory that Fetch needs, which does it if nobody did. Page-locking takes longer than
  // a delta. Errors as Fetch.
  Status TakeMemory(Snapshot& snapshot);

  // Does what WeightSource::Fetch does, for blocks of its own slices. If a capture calls it again
  // for the rest of `refs`, the new call begins where the last one ended. RESOURCE_EXHAUSTED,
  // INTERNAL: an error of the GPU; the message names it.
  Result<FetchedBlocks> Fetch(std::span<const BlockRef> refs, FetchAs as, Snapshot& snapshot,
                              ThreadPool& pool);

  // Writes changes of its blocks that are taken into this version without a Fetch to the GPU's copy
  // of the snapshot, after the last Fetch. If that fails, the next Fetch copies all again.
  void UpdateCopy(std::span<const ListedBlock> blocks, Snapshot& snapshot, ThreadPool& pool);

  // See WeightSource; for blocks of the last Fetch. View is not empty for blocks for which Diffed
  // returns nullopt.
  std::optional<DiffedBlock> Diffed(BlockRef ref) const;
  ByteSpan View(BlockRef ref) const;

 private:
  static constexpr uint32_t kNoPlace = ~uint32_t{0};

  struct Block {
    BlockRef ref;
    uint64_t size_bytes = 0;
    ByteSpan copied;  // unused if `listed`
    bool listed = false;
    DiffedBlock diffed;
  };
  // What a comparison works with. Two are used in turn.
  struct Lane {
    cuda::WorkLane work;
    cuda::CudaBuffer device_results;  // arena bytes used, then DiffResult[]
    cuda::CudaBuffer device_arena;
    cuda::CudaBuffer results;  // page-locked
  };
  // Consecutive blocks of blocks_ that are compared, or copied whole, at once.
  struct Window {
    size_t begin = 0;
    size_t end = 0;
    std::vector<uint32_t> compared;  // indexes in blocks_; the others are copied whole
    Lane* lane = nullptr;
  };

  Result<FetchedBlocks> FetchWindows(std::span<const BlockRef> refs, ThreadPool& pool);
  // Forgets the blocks of the last Fetch; those of windows on their way remain.
  void DropReady();
  // Adds the window of the first of `refs`, and starts its comparison or, with kWhole, its copy.
  Status Launch(std::span<const BlockRef> refs, Lane& lane);
  Status CopyWindow(const Window& window);
  cuda::DiffArgs DescribeComparison(const Window& window);
  Status Compare(const Window& window);
  // Waits for the comparison or the copy of the window.
  Status Await(const Window& window);
  // Bytes of the window's lists, after Await.
  uint64_t ListBytes(const Window& window) const;
  // Bytes of copied_ that the window's blocks need, after Await.
  uint64_t CopyBytes(const Window& window) const;
  // Brings the lists and the blocks that have none, and starts to compare the next of `refs` while
  // the host checks the lists.
  Status Bring(const Window& window, std::span<const BlockRef> refs, ThreadPool& pool);
  // Returns the blocks whose lists do not fit the snapshot.
  std::vector<uint32_t> CheckFindings(const Window& window,
                                      std::span<const cuda::DiffResult> results, ByteSpan lists,
                                      ThreadPool& pool);
  void CheckFinding(const cuda::DiffResult& result, ByteSpan lists, Block& block,
                    ListedWords& words) const;
  // Page-locked memory for blocks that are copied whole.
  struct CopyRoom {
    MutableByteSpan host;
    uint64_t address = 0;
  };
  Result<CopyRoom> RoomFor(std::span<const uint32_t> blocks);
  Status CopyWhole(std::span<const uint32_t> blocks, Lane& lane);
  // Starts what CopyWhole does, to this room.
  Status BeginCopy(std::span<const uint32_t> blocks, const CopyRoom& room, Lane& lane);
  // Starts the copies to the host of blocks that were gathered into the GPU's copy.
  Status BringGathered(std::span<const uint32_t> blocks, MutableByteSpan room,
                       const cuda::CudaStream& stream) const;
  // Elements that changed in the blocks that were fetched.
  uint64_t CountChanged(ThreadPool& pool) const;
  const Block& ReadyBlock(BlockRef ref) const;

  const cuda::CudaDevicePtr device_;
  const DeviceShardsOptions options_;
  std::vector<cuda::Place> places_;
  std::vector<uint32_t> place_of_;  // by rank slice, up to the last that has a place
  DeviceSnapshot base_;
  Snapshot* snapshot_ = nullptr;
  FetchAs as_ = FetchAs::kChanges;

  bool has_memory_ = false;
  std::array<Lane, 2> lanes_;
  cuda::CudaBuffer device_places_;
  cuda::CudaBuffer lists_;   // page-locked, as is the next
  cuda::CudaBuffer copied_;  // window_bytes
  std::vector<cuda::CudaBuffer>
      more_copied_;  // for blocks whose lists do not fit, if copied_ is full
  uint64_t lists_used_ = 0;
  uint64_t copied_used_ = 0;
  CaptureSeconds seconds_;

  std::vector<Block> blocks_;  // that are ready, then those of windows on their way
  size_t ready_ = 0;
  std::deque<Window> windows_;      // on their way
  std::vector<uint32_t> index_of_;  // in blocks_, by rank block number
};

}  // namespace dws
