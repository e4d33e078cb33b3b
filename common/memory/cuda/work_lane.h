// A stream with memory for the input of its work: page-locked memory on the host, its twin on the
// device, and scratch. Two lanes used in turn overlap copies with kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/memory/cuda/cuda_device.h"

namespace dws::cuda {

// Lifecycle: a turn is Begin, any number of Puts, Send, launches on stream(); then the next turn.
// Threads: one at a time, but many may fill the room that Put returned, until Send.
class WorkLane {
 public:
  // The most that one turn can hold.
  static constexpr uint64_t kBytesMax = uint64_t{16} << 20;
  static constexpr uint64_t kScratchBytes = uint64_t{64} << 20;
  // Kernels may read so many bytes past the end of what was put.
  static constexpr uint64_t kSlackBytes = 64;

  // RESOURCE_EXHAUSTED, INTERNAL: the device's errors.
  static Result<WorkLane> Create(const CudaDevice& device);

  // Waits until the device has done the lane's earlier work, then empties the lane.
  Status Begin();

  // Returns how many bytes of a lane a room of `size_bytes` takes.
  static constexpr uint64_t kAlignment = 16;
  static constexpr uint64_t Padded(uint64_t size_bytes) {
    return CeilDiv(size_bytes, kAlignment) * kAlignment;
  }
  // Room for `size_bytes` at a multiple of kAlignment. Fill it before Send.
  struct Room {
    MutableByteSpan host;
    uint64_t address = 0;  // on the device
  };
  uint64_t left() const { return kBytesMax - used_; }
  Room Put(uint64_t size_bytes);

  // Starts the copy of all rooms to the device.
  Status Send();

  // kScratchBytes of device memory for intermediate results of a turn.
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
