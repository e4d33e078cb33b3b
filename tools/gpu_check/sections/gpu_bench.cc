// P8, P9, P10. Staging writes nothing to the weights and a commit writes the same values every
// time, so both can be repeated without a reset; digests compare the device's result with the
// codec's.
#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/clock.h"
#include "common/model/limits.h"
#include "tools/bench/measure/timing.h"
#include "tools/gpu_check/sections/commit_case.h"
#include "tools/gpu_check/sections/measured_limits.h"
#include "tools/gpu_check/sections/sections.h"

namespace dws::gpu_check {
namespace {

constexpr Bar kCommitBar = {.side = Bar::Side::kAtMost, .limit = 3};     // P8
constexpr Bar kStageBar = {.side = Bar::Side::kAtMost, .limit = 3};      // P9
constexpr Bar kDigestBar = {.side = Bar::Side::kAtLeast, .limit = 0.6};  // P10
constexpr uint64_t kSectorBytes = 32;
constexpr uint64_t kUnitBytesMax = uint64_t{256} << 20;
constexpr uint64_t kBlockBytes = uint64_t{limits::kBlockElements} * 2;
constexpr uint64_t kCopiedBytesMax = uint64_t{4} << 30;
constexpr double kDensities[] = {0.01, 0.003, 0.008, 0.03};  // the one of the bars first

// Median seconds of `work`, after one warm-up run. `prepare` is not timed.
Result<double> Seconds(int rounds, const std::function<void()>& prepare,
                       const std::function<Status()>& work) {
  const RealClock clock;
  std::vector<double> seconds;
  for (int round = -1; round < rounds; ++round) {
    prepare();
    const TimePoint start = clock.Now();
    DWS_RETURN_IF_ERROR(work());
    if (round >= 0) seconds.push_back(ToSeconds(clock.Now() - start));
  }
  return bench::Median(std::move(seconds));
}

Figure Milliseconds(double seconds, double reference, std::string of_what, Bar bar) {
  return {.value = seconds * 1e3,
          .unit = "ms",
          .reference = reference * 1e3,
          .of_what = std::move(of_what),
          .ratio = seconds / reference,
          .bar = bar};
}

void ReportLimits(const MeasuredLimits& limits, Results& results) {
  results.Measured("copy bandwidth, read and written bytes",
                   {.value = limits.copy * 1e-9, .unit = "GB/s"});
  results.Measured("read bandwidth", {.value = limits.read * 1e-9, .unit = "GB/s"},
                   limits.read_by_kernel ? "" : "that of copies: the driver compiles no kernel");
  results.Measured("PCIe, pinned host memory to the device",
                   {.value = limits.to_device * 1e-9, .unit = "GB/s"});
}

struct Case {
  CommitCase& weights;
  const EncodedUnit& unit;
  DeltaMode mode;
  std::string name;  // "mode A, 1 % of 16 GiB"
};

Status BenchStage(const Options& options, const MeasuredLimits& limits, const Case& bench,
                  Results& results) {
  DWS_ASSIGN_OR_RETURN(const double seconds, Seconds(
                                                 options.rounds, [&] { bench.weights.Drop(); },
                                                 [&] { return bench.weights.Stage(); }));
  DWS_RETURN_IF_ERROR(bench.weights.CheckPrediction());
  const auto copies = static_cast<double>(bench.weights.copies());
  const double encoded = static_cast<double>(bench.unit.encoded_bytes) * copies;
  const double old_bytes =
      bench.mode == DeltaMode::kA
          ? static_cast<double>(bench.unit.touched_sectors * kSectorBytes) * copies
          : static_cast<double>(bench.weights.size_bytes());
  results.Measured(
      "P9 stage, " + bench.name,
      Milliseconds(seconds, encoded / limits.to_device + old_bytes / limits.read,
                   bench.mode == DeltaMode::kA ? "encoded bytes over PCIe + touched sectors read"
                                               : "encoded bytes over PCIe + old weights read",
                   kStageBar));
  return OkStatus();
}

Status BenchCommit(const Options& options, const MeasuredLimits& limits, const Case& bench,
                   Results& results) {
  DWS_RETURN_IF_ERROR(bench.weights.CheckWeights(false));
  DWS_RETURN_IF_ERROR(bench.weights.Seal());
  DWS_ASSIGN_OR_RETURN(const double seconds,
                       Seconds(
                           options.rounds, [] {}, [&] { return bench.weights.Commit(); }));
  DWS_RETURN_IF_ERROR(bench.weights.CheckWeights(true));
  const double bytes =
      static_cast<double>(2 * kSectorBytes * bench.unit.touched_sectors + bench.unit.staged_bytes) *
      static_cast<double>(bench.weights.copies());
  results.Measured(
      "P8 commit, " + bench.name,
      Milliseconds(seconds, bytes / limits.copy,
                   "2 x 32 B x touched sectors + staged bytes at copy bandwidth", kCommitBar));
  return OkStatus();
}

Status BenchDigest(const Options& options, const MeasuredLimits& limits, CommitCase& weights,
                   Results& results) {
  DWS_ASSIGN_OR_RETURN(const double seconds,
                       Seconds(
                           options.rounds, [] {}, [&] { return weights.Digests().status(); }));
  const double speed = static_cast<double>(weights.size_bytes()) / seconds;
  results.Measured("P10 full digest", {.value = speed * 1e-9,
                                       .unit = "GB/s",
                                       .reference = limits.read * 1e-9,
                                       .of_what = "read bandwidth",
                                       .ratio = speed / limits.read,
                                       .bar = kDigestBar});
  return OkStatus();
}

}  // namespace

Status RunBench(const Options& options, BenchDevice& device, Results& results) {
  DWS_ASSIGN_OR_RETURN(const uint64_t free, device.device->FreeBytes());
  DWS_ASSIGN_OR_RETURN(
      const MeasuredLimits limits,
      MeasureLimits(device, std::min({kCopiedBytesMax, options.size_bytes, free / 4}),
                    options.rounds));
  ReportLimits(limits, results);

  // Staged entries of 3 % take a sixteenth of the weights' bytes.
  const uint64_t size = std::max(std::min(options.size_bytes, free / 4 * 3), kBlockBytes);
  const uint64_t unit_bytes = std::min(kUnitBytesMax, size) / kBlockBytes * kBlockBytes;
  const auto copies = static_cast<uint32_t>(size / unit_bytes);
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<CommitCase> weights,
                       CommitCase::Create(device, unit_bytes / 2, copies));
  bool digest_done = false;
  for (const double density : kDensities) {
    for (const DeltaMode mode : {DeltaMode::kA, DeltaMode::kB}) {
      const EncodedUnit unit = MakeUnit(unit_bytes / 2, density, mode, *device.pool);
      DWS_RETURN_IF_ERROR(weights->Load(unit));
      const Case bench = {
          .weights = *weights,
          .unit = unit,
          .mode = mode,
          .name = fmt::format("mode {}, {:g} % of {:g} GiB", ToString(mode), density * 100,
                              static_cast<double>(weights->size_bytes()) / 0x1p30)};
      DWS_RETURN_IF_ERROR(BenchStage(options, limits, bench, results));
      DWS_RETURN_IF_ERROR(BenchCommit(options, limits, bench, results));
      if (!digest_done) {
        DWS_RETURN_IF_ERROR(BenchDigest(options, limits, *weights, results));
        digest_done = true;
      }
    }
  }
  return OkStatus();
}

}  // namespace dws::gpu_check
