// The part of a device that a broadcast needs: two slots, each the same bytes in page-locked host
// memory and in device memory, and one stream that copies between them. The seam between NCCL and
// CUDA: cuda_lane.h is the real one; tests have one whose device memory is the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws::nccl {

inline constexpr size_t kLaneSlots = 2;

// Lifecycle: destroy it only after Finished has returned true; until then the device may write to
// its memory. Threads: one at a time.
class DeviceLane {
 public:
  virtual ~DeviceLane() = default;

  // Makes this the calling thread's current device, as NCCL expects before a communicator is made.
  virtual Status Enter() = 0;
  // The stream, in the form that NCCL takes.
  virtual void* stream() = 0;
  virtual uint64_t slot_bytes() const = 0;
  virtual uint64_t device_address(size_t slot) const = 0;
  virtual MutableByteSpan host_bytes(size_t slot) const = 0;
  // The first `size_bytes` of a slot, host to device and back. Run in the stream's order; the calls
  // return at once. INTERNAL names the driver's error.
  virtual Status CopyIn(size_t slot, uint64_t size_bytes) = 0;
  virtual Status CopyOut(size_t slot, uint64_t size_bytes) = 0;
  // Returns whether everything that was enqueued on the stream is done. INTERNAL: it failed.
  virtual Result<bool> Finished() = 0;
};

// Makes lanes whose slots have `slot_bytes`. RESOURCE_EXHAUSTED: the device's memory is full.
using DeviceLaneSource = std::function<Result<std::unique_ptr<DeviceLane>>(uint64_t slot_bytes)>;

}  // namespace dws::nccl
