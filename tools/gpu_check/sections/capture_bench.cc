// Compares live weights with their snapshot, by the kernels alone: the cost of a capture on the
// device. It does not include copies of lists and the host's work.
#include <algorithm>
#include <memory>

#include "common/base/clock.h"
#include "common/model/limits.h"
#include "tools/bench/measure/timing.h"
#include "tools/gpu_check/sections/compare_case.h"
#include "tools/gpu_check/sections/measured_limits.h"
#include "tools/gpu_check/sections/sections.h"

namespace dws::gpu_check {
namespace {

constexpr Bar kCompareBar = {.side = Bar::Side::kAtLeast, .limit = 0.6};
constexpr uint64_t kBlockBytes = uint64_t{limits::kBlockElements} * 2;
constexpr uint64_t kUnitBytesMax = uint64_t{256} << 20;
constexpr uint64_t kCopiedBytesMax = uint64_t{4} << 30;
constexpr double kDensities[] = {0.01, 0.003, 0.03};  // the one of most captures first
constexpr uint64_t kWindows[] = {uint64_t{128} << 20, uint64_t{1} << 30};

// Median seconds of a comparison of all weights. Each starts from the first version.
Result<double> CompareSeconds(int rounds, const CompareCase& weights) {
  const RealClock clock;
  std::vector<double> seconds;
  for (int round = -1; round < rounds; ++round) {
    DWS_RETURN_IF_ERROR(weights.Reset());
    const TimePoint start = clock.Now();
    DWS_RETURN_IF_ERROR(weights.Compare());
    if (round >= 0) seconds.push_back(ToSeconds(clock.Now() - start));
    DWS_RETURN_IF_ERROR(weights.CheckFindings(true));
  }
  // The snapshot has become the second version.
  DWS_RETURN_IF_ERROR(weights.Compare());
  DWS_RETURN_IF_ERROR(weights.CheckFindings(false));
  return bench::Median(std::move(seconds));
}

}  // namespace

Status RunCapture(const Options& options, BenchDevice& device, Results& results) {
  DWS_ASSIGN_OR_RETURN(const uint64_t free, device.device->FreeBytes());
  DWS_ASSIGN_OR_RETURN(
      const MeasuredLimits limits,
      MeasureLimits(device, std::min({kCopiedBytesMax, options.size_bytes, free / 4}),
                    options.rounds));
  uint64_t size = std::max(options.size_bytes, kBlockBytes);
  // Small weights, too, are compared in several windows.
  const uint64_t window_max =
      std::max(std::min(kWindows[1], size / 2) / kBlockBytes * kBlockBytes, kBlockBytes);
  while (size > kBlockBytes && CompareCase::MemoryBytes(size, window_max) > free / 8 * 7) {
    size -= size / 8;
  }
  const uint64_t unit_bytes = std::min(kUnitBytesMax, size) / kBlockBytes * kBlockBytes;
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<CompareCase> weights,
                       CompareCase::Create(device, unit_bytes / 2,
                                           static_cast<uint32_t>(size / unit_bytes), window_max));
  for (const double density : kDensities) {
    const ComparedUnit unit = MakeComparedUnit(unit_bytes / 2, density, *device.pool);
    DWS_RETURN_IF_ERROR(weights->Load(unit));
    for (const uint64_t window : kWindows) {
      const uint64_t window_bytes = std::min(window, window_max);
      DWS_RETURN_IF_ERROR(weights->SetWindow(window_bytes));
      DWS_ASSIGN_OR_RETURN(const double seconds, CompareSeconds(options.rounds, *weights));
      const double speed = 2 * static_cast<double>(weights->size_bytes()) / seconds;
      results.Measured(
          fmt::format("comparison kernels, {:g} % of {:g} GiB, windows of {:g} MiB", density * 100,
                      static_cast<double>(weights->size_bytes()) / 0x1p30,
                      static_cast<double>(window_bytes) / 0x1p20),
          {.value = speed * 1e-9,
           .unit = "GB/s",
           .reference = limits.read * 1e-9,
           .of_what = "read bandwidth; weights and snapshot are read",
           .ratio = speed / limits.read,
           .bar = kCompareBar});
      if (window >= window_max) break;
    }
    results.Passed(
        fmt::format("comparison of {:g} % changes: changes, digests and snapshot", density * 100));
  }
  return OkStatus();
}

}  // namespace dws::gpu_check
