// A GPU as a model: how long its work and its driver's calls would take. The fake driver's clock
// (model_clock.h) counts by it. Its figures are never measurements.
//
// Plain data with one layout, because the fake driver's library and its users share it.
#pragma once

#include <array>
#include <cstdint>

#include "common/memory/cuda/kernels/kernel_args.h"

namespace dws::cuda {

// What a kernel takes: `seconds_each` for each of its changes, and the time of its bytes at
// `share` of the bandwidth.
struct KernelSpeed {
  double share = 1;
  double seconds_each = 0;
};

// Bandwidths are in bytes a second. The defaults are of an H100 SXM behind PCIe 5.0 x16.
// "Measured" means: in tests/gpu/results/2026-11-28-h100-d616dc86.json (4 GiB of weights) or
// docs/performance.md. Everything else is an assumption.
struct GpuModel {
  // Measured: "read bandwidth"; "copy bandwidth, read and written bytes".
  double read_bandwidth = 2961.8e9;
  double copy_bandwidth = 3023.4e9;
  // Measured: "PCIe, pinned host memory to the device".
  double to_device_bandwidth = 55.2e9;
  // Assumption: the other direction is as fast.
  double to_host_bandwidth = 55.2e9;
  // Assumption: memory that is not page-locked crosses the bus in pieces, by the driver's copies.
  double pageable_bandwidth = 10e9;

  // By Kernel.
  //   kStage, kStageSplit: measured P9 at 1 %: 4.33 and 6.57 ms for 21.5 million changes. The
  //     payloads took 0.50 and 0.44 ms of it on the bus, and the bytes at read bandwidth take 0.27
  //     and 1.49 ms: the model counts these besides. These were older kernels.
  //   kCommit: measured P8 at 1 %: 2.56 times its bytes at copy bandwidth.
  //   kDigest: measured P10: 0.98 of the read bandwidth.
  //   kDiff: assumption: the bar of docs/gpu.md's kernel, 0.6 of the read bandwidth.
  //   kDiffList: assumption: scatters like kCommit.
  //   kGather: assumption: copies at copy bandwidth.
  //   kQuantise: assumption: half of the bandwidths.
  std::array<KernelSpeed, kKernelCount> kernels = {{{.share = 1, .seconds_each = 166e-12},
                                                    {.share = 1, .seconds_each = 216e-12},
                                                    {.share = 0.39},
                                                    {.share = 0.98},
                                                    {.share = 0.6},
                                                    {.share = 0.39},
                                                    {.share = 1},
                                                    {.share = 0.5}}};

  // Assumptions, all of them, in seconds: from a call until its work can begin on an idle device;
  // what a call that queues work costs the host; from the end of work until a waiting host goes on.
  double kernel_latency = 4e-6;
  double copy_latency = 8e-6;
  double call_seconds = 2e-6;
  double wake_seconds = 6e-6;
  // Assumptions, in seconds, and for each byte: memory of the device, page-locked memory that the
  // driver allocates, memory that it locks.
  double allocate_seconds = 100e-6;
  double allocate_each = 1e-12;
  double pin_each = 0.25e-9;
  double register_each = 0.12e-9;

  // True if the time that the host computes outside of the driver passes on the clock, as it passes
  // on this machine. If not, the host is infinitely fast, and the clock moves by calls and waits.
  bool host_counts = false;

  static constexpr GpuModel H100() { return {}; }
};

// One piece of work on the clock, in seconds. `begin` to `end` is when its engine is busy with it
// (kWait, kTakeMemory: when the host is blocked).
struct ModelledOp {
  enum class Kind : uint8_t { kKernel, kToDevice, kToHost, kOnDevice, kWait, kTakeMemory };
  Kind kind = Kind::kKernel;
  Kernel kernel = Kernel::kStage;  // of kKernel
  uint64_t bytes = 0;              // that it moves: on the device, or between device and host
  double called = 0;
  double begin = 0;
  double end = 0;
};

// What the fake driver exports besides the driver's functions; FakeClock calls it.
extern "C" {
// Starts the clock at 0, with an empty log; null stops it. One at a time.
using SetGpuModel = void (*)(const GpuModel* model);
// Seconds; 0 without a clock.
using GpuModelNow = double (*)();
// Moves the first `max` entries of the log to `out`; returns how many. The log keeps
// kModelledOpsMax entries, and counts nothing after these.
using TakeModelledOps = uint64_t (*)(ModelledOp* out, uint64_t max);
}
inline constexpr uint64_t kModelledOpsMax = uint64_t{1} << 20;

}  // namespace dws::cuda
