// Measures the codec and the paths of capture, staging and commit against the limits of the machine
// and against other formats. CSV on stdout, a table with the bars on stderr.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "tools/bench/codec/capture_bench.h"
#include "tools/bench/codec/dense_bench.h"
#include "tools/bench/codec/probe.h"
#include "tools/bench/codec/stage_bench.h"
#include "tools/bench/codec/wire_bench.h"
#include "tools/bench/measure/options.h"
#include "tools/bench/measure/report.h"
#include "tools/bench/measure/synthetic.h"
#include "tools/bench/measure/trace.h"

namespace dws::bench {
namespace {

constexpr uint64_t kSizeMin = uint64_t{1} << 20;
constexpr uint64_t kSizeMax = uint64_t{8} << 30;
constexpr uint64_t kSyntheticBytes = uint64_t{128} << 20;  // repeated up to the size asked for
constexpr double kSyntheticDensity = 0.01;

// The weights of the speed figures: the last two steps of the trace, or synthetic ones, tiled.
Result<Workload> MakeWorkload(const Options& options) {
  std::vector<TensorPair> tensors;
  if (!options.trace.empty()) {
    DWS_ASSIGN_OR_RETURN(tensors, ReadLastSteps(options.trace));
  } else {
    const uint64_t elements = std::min(kSyntheticBytes, options.size_bytes) / 2;
    Versions versions = MakeBf16(elements, kSyntheticDensity);
    tensors.push_back({.spec = {.name = "weight", .dtype = DType::kBF16, .shape = {elements}},
                       .before = std::move(versions.before),
                       .after = std::move(versions.after)});
  }
  return Workload::Tile(std::move(tensors), options.size_bytes);
}

Status Run(const Options& options) {
  if (options.probe) {
    DWS_ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(options));
    return ServeProbe(workload);
  }
  Report report;
  if (options.Wants("P1a")) DWS_RETURN_IF_ERROR(BenchSyntheticBytes(options, report));
  if (!options.trace.empty() && (options.Wants("P1b") || options.Wants("P2"))) {
    DWS_RETURN_IF_ERROR(BenchTraceBytes(options, report));
  }
  if (!options.trace.empty() && options.Wants("P25")) {
    DWS_RETURN_IF_ERROR(BenchParts(options, report));
  }
  if (options.Wants("P3") || options.Wants("P4")) {
    DWS_ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(options));
    if (options.Wants("P3")) DWS_RETURN_IF_ERROR(BenchCapture(options, workload, report));
    if (options.Wants("P4")) DWS_RETURN_IF_ERROR(BenchStage(options, workload, report));
  }
  if (options.Wants("dense")) {
    DWS_RETURN_IF_ERROR(BenchFullTensors(options, report));
    DWS_RETURN_IF_ERROR(BenchDenseSizes(options, report));
  }
  report.PrintTable();
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Measures the codec: bytes on the wire, capture, staging, commit. CSV on stdout "
      "(id,case,ours,reference,ratio,unit), a table with the bars on stderr.",
      "tools/bench.sh codec");
  app.add_option("--size", options.size_bytes,
                 "Bytes of weights for the speed figures: 64MiB, 2GiB (default)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(kSizeMin, kSizeMax));
  app.add_option("--rounds", options.rounds, "Repetitions of each; the median counts (default 5)")
      ->check(CLI::Range(1, 1000));
  app.add_option(
      "--trace", options.trace,
      "Folder of safetensors files: consecutive steps of one training run, by name. "
      "Without one, P1b, P2 and P25 are left out and the speed figures use synthetic weights");
  app.add_option("--only", options.only,
                 "Groups to run, with commas: P1a P1b P2 P25 P3 P4 dense daemons")
      ->delimiter(',')
      ->check(CLI::IsMember({"P1a", "P1b", "P2", "P25", "P3", "P4", "dense", "daemons"}));
  app.add_flag("--no-daemons", options.no_daemons, "Leave out P6, P7 and P13, which start daemons");
  app.add_flag("--probe", options.probe, "Answer requests for single measurements on stdin")
      ->group("");
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "codec_bench: {}\n", ToString(status));
  return 1;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
