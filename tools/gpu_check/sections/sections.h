// The parts of gpu_check. Each runs in its own process, so that a CUDA error, which stays until the
// process ends, does not affect the next one.
#pragma once

#include <span>
#include <string_view>

#include "common/base/status.h"
#include "tools/gpu_check/report/results.h"
#include "tools/gpu_check/sections/bench_device.h"
#include "tools/gpu_check/sections/options.h"

namespace dws::gpu_check {

// One section: a function of this program, or tests of gpu_tests.
struct Section {
  std::string_view name;
  int seconds_max = 0;  // it is killed then
  // An error prevents the rest of the section and counts as one more failed check.
  Status (*run)(const Options& options, BenchDevice& device, Results& results) = nullptr;
  // Instead: tests of the other program, by the files they are in, as Catch2 selects them.
  std::string_view tests = "";
};

// In the order they run. Their times add up to less than ten minutes, without torch_check.py.
std::span<const Section> Sections();

// Describes the machine.
Status RunInfo(const Options& options, BenchDevice& device, Results& results);
// Memory of other processes: every kind of handle, many tensors, devices in another order.
Status RunIpc(const Options& options, BenchDevice& device, Results& results);
// Memory whose owner dies while we commit to it.
Status RunKill(const Options& options, BenchDevice& device, Results& results);
// Broadcasts between several processes.
Status RunNccl(const Options& options, BenchDevice& device, Results& results);
// P8 to P10.
Status RunBench(const Options& options, BenchDevice& device, Results& results);
// How fast live weights are compared with their snapshot.
Status RunCapture(const Options& options, BenchDevice& device, Results& results);
// How much staging slows an engine that shares the device.
Status RunSlowdown(const Options& options, BenchDevice& device, Results& results);

}  // namespace dws::gpu_check
