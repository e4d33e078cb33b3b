// Weights of any size on the device, made of copies of one encoded unit, and the timed work on
// them: staging, committing, digests. The result is checked every time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/memory/cuda/device_weights.h"
#include "common/memory/cuda/staging_run.h"
#include "tools/gpu_check/sections/bench_device.h"
#include "tools/gpu_check/sections/encoded_unit.h"

namespace dws::gpu_check {

// Lifecycle: Create, Load, then the others. Threads: one. Errors: RESOURCE_EXHAUSTED, INTERNAL: an
// error of the device; DATA_LOSS: the kernels' result is not the codec's.
class CommitCase {
 public:
  // Room for `copies` of `unit_elements`.
  static Result<std::unique_ptr<CommitCase>> Create(const BenchDevice& device,
                                                    uint64_t unit_elements, uint32_t copies,
                                                    cuda::DutyCycle duty = {});

  uint64_t size_bytes() const { return weights_bytes_.size_bytes(); }
  uint32_t copies() const { return copies_; }

  // All copies become the unit's first version. `unit` must outlive the following calls.
  Status Load(const EncodedUnit& unit);
  // Stages every copy, and drops what was staged before.
  Status Stage();
  // What is staged, ready to be committed: once after a Stage.
  Status Seal();
  // Writes the staged values; can be repeated.
  Status Commit();
  // Reads all weights.
  Result<std::vector<cuda::KernelDigest>> Digests();

  // Drops what is staged.
  void Drop() { staged_ = {}; }
  // OK if Stage predicted the unit's digests.
  Status CheckPrediction() const;
  // OK when all copies are the unit's first or second version.
  Status CheckWeights(bool after);

 private:
  CommitCase(const BenchDevice& device, uint64_t unit_elements, uint32_t copies)
      : device_(device), unit_elements_(unit_elements), copies_(copies) {}

  const BenchDevice& device_;
  const uint64_t unit_elements_;
  const uint32_t copies_;
  cuda::CudaBuffer weights_bytes_;
  std::unique_ptr<cuda::DeviceWeights> weights_;
  std::vector<cuda::DigestBlock> digest_blocks_;
  const EncodedUnit* unit_ = nullptr;
  std::vector<cuda::StageItem> items_;
  cuda::StagedBlocks staged_;
  std::vector<cuda::KernelDigest> differences_;
};

}  // namespace dws::gpu_check
