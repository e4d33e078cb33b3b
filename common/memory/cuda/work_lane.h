// A stream with the memory that work is handed to it in: page-locked on the host, its twin on the
// device, and scratch. Two lanes taken in turn overlap copies with kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/memory/cuda/cuda_device.h"

namespace dws::cuda {

// Lifecycle: Begin, Put any number of times, Send, launches on stream(); again. Threads: one at a
// time, but bytes that were put may be filled by many until Send.
class WorkLane {
 public:
  // What one turn takes at most.
  static constexpr uint64_t kBytesMax = uint64_t{16} << 20;
  static constexpr uint64_t kScratchBytes = uint64_t{64} << 20;
  // Kernels may read so much behind what was put.
  static constexpr uint64_t kSlackBytes = 64;

  // RESOURCE_EXHAUSTED, INTERNAL: the device's.
  static Result<WorkLane> Create(const CudaDevice& device);

  // Waits until the device has done what it was sent before, and empties the lane.
  Status Begin();

  // What room for `size_bytes` takes of a lane.
  static constexpr uint64_t kAlignment = 16;
  static constexpr uint64_t Padded(uint64_t size_bytes) {
    return CeilDiv(size_bytes, kAlignment) * kAlignment;
  }
  // Room for `size_bytes` at a multiple of kAlignment, to be filled before Send.
  struct Room {
    MutableByteSpan host;
    uint64_t address = 0;  // on the device
  };
  uint64_t left() const { return kBytesMax - used_; }
  Room Put(uint64_t size_bytes);

  // Starts the copy of all that was put.
  Status Send();

  // Memory of the device for whatever a turn leaves to itself: kScratchBytes.
  uint64_t scratch() const { return scratch_.address(); }

  const CudaStream& stream() const { return stream_; }

 private:
  CudaStream stream_;
  CudaBuffer host_;
  CudaBuffer twin_;
  CudaBuffer scratch_;
  uint64_t used_ = 0;
};

}  // namespace dws::cuda
