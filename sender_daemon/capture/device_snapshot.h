// The snapshot as a GPU sees it, to compare live weights with: a copy of it in the GPU's memory, or
// where that is short its own pages, which the GPU reads over PCIe.
//
// The host's snapshot is what counts: it has the bytes that were published, and its digests. A copy
// is a means of finding changes fast; what it finds is checked against the host's (DeviceShards).
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/memory/cuda/cuda_device.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/capture/weight_source.h"

namespace dws {

// Lifecycle: takes its memory with the first Prepare; does not outlive the snapshot. Threads: one
// at a time.
class DeviceSnapshot {
 public:
  // Of `slices`, ascending. The copy is made only where `spare_bytes` of the GPU stay free beside
  // it.
  DeviceSnapshot(cuda::CudaDevicePtr device, std::vector<RankSlice> slices, uint64_t spare_bytes)
      : device_(std::move(device)), slices_(std::move(slices)), spare_bytes_(spare_bytes) {}

  // Inside a capture into `snapshot`, the same every time. Copies it anew unless what is there was
  // kept up with every capture. `room` is page-locked memory for it to pass through. RESOURCE_
  // EXHAUSTED: neither memory of the GPU nor page-locked memory is to be had; INTERNAL: the GPU's.
  Status Prepare(Snapshot& snapshot, const cuda::CudaStream& stream, MutableByteSpan room,
                 ThreadPool& pool);

  // A call that writes to the copy has failed: the next Prepare copies anew.
  void Distrust() { trusted_ = false; }

  // After Prepare. True: whoever captures a block brings the copy up to date as well.
  bool is_copy() const { return copy_.size_bytes() != 0; }
  // Of the bytes of a block of one of the slices: a multiple of 64, with room for whole words.
  uint64_t Address(const Snapshot& snapshot, BlockRef ref) const;

 private:
  // Bytes that follow each other in both.
  struct Extent {
    uint64_t host_offset = 0;
    uint64_t device_offset = 0;
    uint64_t size_bytes = 0;
  };

  uint64_t Arrange(Snapshot& snapshot);
  Status TakeMemory(Snapshot& snapshot);
  Status CopyAll(ByteSpan bytes, const cuda::CudaStream& stream, MutableByteSpan room,
                 ThreadPool& pool) const;

  const cuda::CudaDevicePtr device_;
  const std::vector<RankSlice> slices_;
  const uint64_t spare_bytes_;
  cuda::CudaBuffer copy_;
  cuda::CudaBuffer pinned_;        // the snapshot's own pages
  std::vector<Extent> extents_;    // of the copy
  std::vector<uint64_t> offsets_;  // by rank slice; in the copy, or in the snapshot
  bool trusted_ = false;
  uint64_t undone_ = 0;  // Snapshot::undone() when it was copied
};

}  // namespace dws
