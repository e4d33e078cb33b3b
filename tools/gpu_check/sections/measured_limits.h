// The best the device can do, measured in the same run: the references of P8 to P10.
#pragma once

#include "common/base/status.h"
#include "tools/gpu_check/sections/bench_device.h"

namespace dws::gpu_check {

// Bytes a second.
struct MeasuredLimits {
  double copy = 0;              // inside device memory; bytes read and written both count
  double read = 0;              // of device memory
  bool read_by_kernel = false;  // false: this driver cannot compile the kernel; `read` is `copy`
  double to_device = 0;         // from page-locked memory of the host
};

// Measures `bytes` of memory and as many again, at most. RESOURCE_EXHAUSTED, INTERNAL: an error of
// the device.
Result<MeasuredLimits> MeasureLimits(const BenchDevice& device, uint64_t bytes, int rounds);

}  // namespace dws::gpu_check
