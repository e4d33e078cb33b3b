// Writes whole elements to places on one device, from many threads: the first version of an engine
// that does not compute yet. Deltas are staged instead (staging_run.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/kernels/kernel_args.h"

namespace dws::cuda {

// Elements of one place, from one that begins a block.
struct DenseRange {
  Place place;
  uint32_t place_index = 0;  // in `places`
  uint64_t first_element = 0;
  uint8_t element_bytes = 1;
};

// Each thread copies to page-locked memory of its own, so that copies of the host and of the device
// overlap. Lifecycle: like DeviceWeights; it allocates memory at the first write and keeps it.
// Threads: safe from any, for different elements.
class DenseWriter {
 public:
  // `places`: the address of the device's Place[].
  DenseWriter(CudaDevicePtr device, uint64_t places)
      : device_(std::move(device)), places_(places) {}

  // `bytes` are written when this returns. INTERNAL, RESOURCE_EXHAUSTED: the device's errors; the
  // latter only if there is not even memory for one thread's copies.
  Status Write(const DenseRange& range, ByteSpan bytes);

 private:
  // The largest size of one copy: whole blocks of any element type.
  static constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
  static constexpr size_t kLanesMax = 16;
  struct Lane {
    CudaStream stream;
    CudaBuffer host;  // holds a piece, then its list
    CudaBuffer twin;  // on the device
  };
  Result<Lane> MakeLane() const;
  Status TakeLane(Lane& lane);
  void ReturnLane(Lane lane);
  Status WritePiece(const Lane& lane, const DenseRange& range, ByteSpan bytes) const;

  const CudaDevicePtr device_;
  const uint64_t places_;
  Mutex mutex_;
  CondVar returned_;
  std::vector<Lane> idle_ GUARDED_BY(mutex_);
  size_t lanes_ GUARDED_BY(mutex_) = 0;  // made so far
  size_t lanes_max_ GUARDED_BY(mutex_) = kLanesMax;
};

}  // namespace dws::cuda
