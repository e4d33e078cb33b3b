// The snapshot as a GPU sees it, for comparison with live weights: a copy in the GPU's memory or,
// where that is short, the host's own pages, which the GPU reads over PCIe.
//
// The host's snapshot is authoritative: it has the published bytes and their digests. The copy only
// finds changes fast; DeviceShards checks them against the host's snapshot. It is also lent to
// receivers of this host (gpu_copies.h). If the GPU is short because a loan outlasts an earlier
// registration (left_copies.h), the copy is made as soon as that has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/cuda/cuda_device.h"
#include "sender_daemon/capture/left_copies.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/capture/weight_source.h"

namespace dws {

// Lifecycle: takes its memory on the first Prepare; does not outlive the snapshot. Threads: one at
// a time.
class DeviceSnapshot {
 public:
  // `slices` ascend. The copy is made only if `spare_bytes` of the GPU's memory stay free.
  DeviceSnapshot(cuda::CudaDevicePtr device, std::vector<RankSlice> slices, uint64_t spare_bytes,
                 std::shared_ptr<LeftCopies> left)
      : device_(std::move(device)),
        slices_(std::move(slices)),
        spare_bytes_(spare_bytes),
        left_(std::move(left)) {}
  ~DeviceSnapshot();
  DeviceSnapshot(const DeviceSnapshot&) = delete;
  DeviceSnapshot& operator=(const DeviceSnapshot&) = delete;

  // Called inside a capture into `snapshot`, the same every time. Copies the snapshot again unless
  // every capture since the last copy also updated the copy. `room` is page-locked memory for the
  // transfer. `idle`: no GPU work reads the snapshot, so its place may change. RESOURCE_EXHAUSTED:
  // neither GPU memory nor page-locked memory is available; INTERNAL: an error of the GPU.
  Status Prepare(Snapshot& snapshot, const cuda::CudaStream& stream, MutableByteSpan room,
                 ThreadPool& pool, bool idle);

  // Call this when a write to the copy failed: the next Prepare copies again.
  void Distrust();
  // Call it in a capture whose changes are in `snapshot` by now, before those that were not
  // compared with the copy are written to it. Returns false if there is nothing to write: there is
  // no memory for a copy, or all of it was copied again. No GPU work reads the snapshot. Errors
  // as Prepare.
  Result<bool> BeginUpdate(Snapshot& snapshot, const cuda::CudaStream& stream, MutableByteSpan room,
                           ThreadPool& pool);

  const std::vector<RankSlice>& slices() const { return slices_; }

  // Valid after Prepare. If true, the code that captures a block must also update the copy.
  bool is_copy() const { return copy_ != nullptr; }
  // Address of a block of one of the slices: a multiple of 64, with room for whole words.
  uint64_t Address(const Snapshot& snapshot, BlockRef ref) const;

 private:
  // Bytes that are contiguous in the snapshot and in the copy.
  struct Extent {
    uint64_t host_offset = 0;
    uint64_t device_offset = 0;
    uint64_t size_bytes = 0;
  };

  uint64_t Arrange(Snapshot& snapshot);
  Status TakeMemory(Snapshot& snapshot);
  // Makes the copy if there is memory for it: what is left of an earlier one, or new memory.
  Status TakeCopy(Snapshot& snapshot);
  // Returns whether memory for the copy, which a loan may have held, may be there by now.
  bool MayTakeCopy() const;
  // Copies the snapshot, unless the copy has it but for the changes of this capture.
  Status MakeCurrent(Snapshot& snapshot, const cuda::CudaStream& stream, MutableByteSpan room,
                     ThreadPool& pool);
  Status CopyAll(ByteSpan bytes, const cuda::CudaStream& stream, MutableByteSpan room,
                 ThreadPool& pool) const;

  const cuda::CudaDevicePtr device_;
  const std::vector<RankSlice> slices_;
  const uint64_t spare_bytes_;
  const std::shared_ptr<LeftCopies> left_;
  std::shared_ptr<const cuda::CudaBuffer> copy_;  // null: there is no copy
  std::shared_ptr<GpuCopies> copies_;             // that the copy is one of
  GpuCopies::Id id_ = 0;                          // in these
  // The snapshot's own pages. They stay page-locked when there is a copy after all, because another
  // device's buffer may share the lock.
  cuda::CudaBuffer pinned_;
  uint64_t size_bytes_ = 0;      // of the copy, if there is memory for it
  size_t left_when_short_ = 0;   // LeftCopies::Count when there was no memory for the copy
  std::vector<Extent> extents_;  // of the copy
  // By rank slice: in the copy, or in the snapshot if there is no copy.
  std::vector<uint64_t> offsets_;
  bool trusted_ = false;
  uint64_t undone_ = 0;  // CaptureHistory::undone at the last copy
};

}  // namespace dws
