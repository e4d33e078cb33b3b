// Weights of any size on the device beside their snapshot, made of copies of one unit, and their
// comparison by the kernels, a window at a time. The result is checked every time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/model/digest/digest.h"
#include "tools/gpu_check/sections/bench_device.h"

namespace dws::gpu_check {

// BF16 weights in two versions, and how they differ. Immutable once made.
struct ComparedUnit {
  std::vector<std::byte> before;
  std::vector<std::byte> after;
  uint64_t changes = 0;
  Digest difference;
};

// `elements` (a multiple of a block's) of about normal distribution, changed at uniform positions
// with chance `density`.
ComparedUnit MakeComparedUnit(uint64_t elements, double density, ThreadPool& pool);

// Lifecycle: Create, Load, SetWindow, then Reset and Compare in turn. Threads: one. Errors:
// RESOURCE_EXHAUSTED, INTERNAL: an error of the device; DATA_LOSS: the result is not the codec's.
class CompareCase {
 public:
  // Room for `copies` of `unit_elements`, and for windows of up to `window_bytes_max`.
  static Result<std::unique_ptr<CompareCase>> Create(const BenchDevice& device,
                                                     uint64_t unit_elements, uint32_t copies,
                                                     uint64_t window_bytes_max);
  // The device memory that it takes at most, in bytes.
  static uint64_t MemoryBytes(uint64_t size_bytes, uint64_t window_bytes_max);

  uint64_t size_bytes() const { return size_bytes_; }

  // All copies become the unit's second version. `unit` must outlive the following calls.
  Status Load(const ComparedUnit& unit);
  // What Compare gives the kernels at once: a multiple of a block's bytes.
  Status SetWindow(uint64_t window_bytes);
  // The snapshot becomes the first version of all copies.
  Status Reset() const;
  // Compares all weights with the snapshot, and updates it.
  Status Compare() const;
  // OK if the last Compare found all changes and no others, or none at all if not `changed`.
  Status CheckFindings(bool changed) const;

 private:
  CompareCase(const BenchDevice& device, uint64_t unit_elements, uint32_t copies)
      : device_(device), unit_bytes_(unit_elements * 2), size_bytes_(unit_bytes_ * copies) {}

  Status Fill(const cuda::CudaBuffer& weights, const std::vector<std::byte>& unit) const;

  const BenchDevice& device_;
  const uint64_t unit_bytes_;
  const uint64_t size_bytes_;
  cuda::CudaStream stream_;
  cuda::CudaBuffer live_;
  cuda::CudaBuffer snapshot_;
  cuda::CudaBuffer places_;
  cuda::CudaBuffer blocks_;    // DiffBlock[], of all windows
  cuda::CudaBuffer segments_;  // uint32_t[], of all windows
  cuda::CudaBuffer results_;   // DiffResult[]
  cuda::CudaBuffer used_;      // of the arena
  cuda::CudaBuffer arena_;     // of one window, as is the next
  cuda::CudaBuffer work_;
  uint64_t window_blocks_ = 1;
  const ComparedUnit* unit_ = nullptr;
};

}  // namespace dws::gpu_check
