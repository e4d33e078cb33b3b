// Stream priorities mean nothing between processes, so staging takes its share of the device from
// an engine; --gpu-duty says how large. This measures the cost.
#include <algorithm>

#include "common/base/clock.h"
#include "common/model/limits.h"
#include "tools/gpu_check/exporter/exporter.h"
#include "tools/gpu_check/sections/commit_case.h"
#include "tools/gpu_check/sections/sections.h"

namespace dws::gpu_check {
namespace {

constexpr double kDensity = 0.01;
constexpr uint64_t kUnitBytes = uint64_t{256} << 20;
constexpr uint64_t kBlockBytes = uint64_t{limits::kBlockElements} * 2;

// The engine's speed while we stage over and over, if `weights` is not null.
Result<double> SpeedOfEngine(Exporter& engine, double seconds, CommitCase* weights) {
  const RealClock clock;
  DWS_RETURN_IF_ERROR(engine.BeginLoad(seconds));
  const TimePoint start = clock.Now();
  while (weights != nullptr && ToSeconds(clock.Now() - start) < seconds) {
    DWS_RETURN_IF_ERROR(weights->Stage());
  }
  return engine.EndLoad();
}

}  // namespace

Status RunSlowdown(const Options& options, BenchDevice& device, Results& results) {
  const double seconds = device.fake() ? 0.05 : 3;
  DWS_ASSIGN_OR_RETURN(const auto engine, Exporter::Start(device.device->uuid()));
  DWS_RETURN_IF_ERROR(SpeedOfEngine(*engine, seconds, nullptr).status());
  DWS_ASSIGN_OR_RETURN(const double alone, SpeedOfEngine(*engine, seconds, nullptr));

  DWS_ASSIGN_OR_RETURN(const uint64_t free, device.device->FreeBytes());
  const uint64_t size = std::max(std::min(options.size_bytes, free / 4 * 3), kBlockBytes);
  const uint64_t unit_bytes = std::min(kUnitBytes, size) / kBlockBytes * kBlockBytes;
  const EncodedUnit unit = MakeUnit(unit_bytes / 2, kDensity, DeltaMode::kA, *device.pool);
  for (const uint32_t percent : {100, 50, 25}) {
    DWS_ASSIGN_OR_RETURN(
        const std::unique_ptr<CommitCase> weights,
        CommitCase::Create(device, unit_bytes / 2, static_cast<uint32_t>(size / unit_bytes),
                           {.percent = percent}));
    DWS_RETURN_IF_ERROR(weights->Load(unit));
    DWS_ASSIGN_OR_RETURN(const double beside, SpeedOfEngine(*engine, seconds, weights.get()));
    results.Measured(
        fmt::format("an engine's reads beside staging without a pause, --gpu-duty={}", percent),
        {.value = beside,
         .unit = "GB/s",
         .reference = alone,
         .of_what = "the same reads alone",
         .ratio = alone > 0 ? beside / alone : 0});
  }
  return OkStatus();
}

}  // namespace dws::gpu_check
