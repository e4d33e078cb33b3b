// Measures views: the size of their deltas compared with the BF16 delta of the same step, and the
// time of their capture compared with the plain one. CSV on stdout, a table with the bars on
// stderr.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "sender_daemon/publish/publish_pipeline.h"
#include "tools/bench/codec/trace_walk.h"
#include "tools/bench/measure/report.h"
#include "tools/bench/measure/synthetic.h"
#include "tools/bench/measure/timing.h"
#include "tools/bench/measure/trace.h"

namespace dws::bench {
namespace {

constexpr uint64_t kSizeMin = uint64_t{1} << 20;
constexpr uint64_t kSizeMax = uint64_t{8} << 30;
constexpr uint64_t kSyntheticColumns = 2048;
constexpr double kSyntheticDensity = 0.01;
constexpr const char* kViews[] = {"fp8-block128/deepseek", "fp8-channel/vllm", "mxfp8/floor",
                                  "int4-g32/amax7",        "int4-g128/amax7",  "nvfp4/modelopt"};

struct Options {
  uint64_t size_bytes = uint64_t{1} << 30;
  int rounds = 5;
  int threads = 2;
  std::string trace;
};

// The share of elements that changed, of the codes or of the scales of a view.
double ChangedShare(const RankLayout& layout, const CapturedVersion& captured,
                    quantise::Role role) {
  const quantise::OutputKind& kind = *quantise::ParseView(layout.view())->recipe.Find(role);
  uint64_t elements = 0;
  uint64_t changed = 0;
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    const TensorSpec& tensor = layout.shards()[slice.shard].tensor;
    if (tensor.dtype != kind.dtype || !tensor.name.ends_with(kind.name)) continue;
    elements += slice.elements;
    for (uint64_t b = 0; b < slice.blocks; ++b)
      changed += captured.blocks[slice.first_block + b].nnz;
  }
  return static_cast<double>(changed) / static_cast<double>(elements);
}

const char* Unit(std::string_view view) {
  if (view.starts_with("int4")) return "words of 8 codes";
  return view.starts_with("nvfp4") ? "pairs of codes" : "codes";
}

using Views = std::vector<std::unique_ptr<ViewSnapshot>>;

// The delta of each view beside that of the trainer's tensors.
void ReportStep(const TraceStep& step, const Views& views, ThreadPool& pool, Report& report) {
  std::vector<CapturedVersion> captured;
  for (const std::unique_ptr<ViewSnapshot>& view : views) {
    captured.push_back(
        view->CaptureVersion(step.sender.captured().version, &step.sender.captured(), pool));
  }
  const RetainedVersionPtr plain = step.sender.Seal();
  const double share =
      static_cast<double>(plain->nnz) / static_cast<double>(step.placement.layout.element_count());
  for (size_t v = 0; v < views.size(); ++v) {
    const RankLayout& layout = views[v]->state()->layout();
    const double scales = ChangedShare(layout, captured[v], quantise::Role::kScales);
    const double changed = ChangedShare(layout, captured[v], quantise::Role::kCodes);
    const RetainedVersionPtr sealed =
        Seal({.state = views[v]->state(), .captured = std::move(captured[v])});
    const auto ours = static_cast<double>(sealed->object.size());
    const auto reference = static_cast<double>(plain->object.size());
    report.Add({.id = "P22",
                .what = fmt::format("{} to {}; {}; of BF16 {:.3f} % changed; of {} {:.4f} %; of "
                                    "scales {:.4f} %",
                                    step.from, step.to, layout.view(), share * 100,
                                    Unit(layout.view()), changed * 100, scales * 100),
                .ours = ours,
                .reference = reference,
                .ratio = ours / reference,
                .unit = "bytes",
                .bar = AtMost(0.5)});
  }
}

Status BenchBytes(const Options& options, Report& report) {
  ThreadPool pool(1);
  Views views;
  const auto first = [&](SenderSide& sender) -> Status {
    for (const char* name : kViews) {
      DWS_ASSIGN_OR_RETURN(views.emplace_back(), sender.Follow(name, pool));
    }
    return OkStatus();
  };
  const auto each = [&](const TraceStep& step) {
    ReportStep(step, views, pool, report);
    return OkStatus();
  };
  return WalkTrace(options.trace, DeltaProfile::kFast, pool, first, each).status();
}

Result<Workload> MakeWorkload(const Options& options) {
  std::vector<TensorPair> tensors;
  if (!options.trace.empty()) {
    DWS_ASSIGN_OR_RETURN(tensors, ReadLastSteps(options.trace));
  } else {
    const uint64_t rows = std::min<uint64_t>(64, options.size_bytes >> 20) * 256;
    Versions versions = MakeBf16(rows * kSyntheticColumns, kSyntheticDensity);
    tensors.push_back(
        {.spec = {.name = "weight", .dtype = DType::kBF16, .shape = {rows, kSyntheticColumns}},
         .before = std::move(versions.before),
         .after = std::move(versions.after)});
  }
  return Workload::Tile(std::move(tensors), options.size_bytes);
}

// A trainer that goes back and forth between two versions: the plain capture, then that of one
// view.
Status BenchCapture(const Options& options, const Workload& workload, const char* name,
                    Report& report) {
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderSide::Create(workload.placement()));
  ThreadPool pool(static_cast<size_t>(options.threads) - 1);
  workload.FillBefore(sender->weights());
  sender->Capture(pool);
  DWS_ASSIGN_OR_RETURN(const auto view, sender->Follow(name, pool));
  bool is_after = false;
  const std::vector<Contender> contenders = {
      {.run = [&] { sender->Capture(pool); },
       .prepare =
           [&] {
             is_after = !is_after;
             workload.Write(sender->weights(),
                            is_after ? workload.changes().after : workload.changes().before);
           }},
      {.run = [&] {
        view->CaptureVersion(sender->captured().version, &sender->captured(), pool);
      }}};
  const std::vector<double> seconds = MedianSeconds(contenders, options.rounds);
  report.Add({.id = "P21",
              .what = fmt::format("{}; {:.2f} % changed; {} threads", name,
                                  workload.density() * 100, options.threads),
              .ours = seconds[1],
              .reference = seconds[0],
              .ratio = seconds[1] / seconds[0],
              .unit = "s",
              .bar = AtMost(1.5)});
  return OkStatus();
}

Status Run(const Options& options) {
  Report report;
  if (!options.trace.empty()) DWS_RETURN_IF_ERROR(BenchBytes(options, report));
  DWS_ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(options));
  for (const char* name : kViews) {
    DWS_RETURN_IF_ERROR(BenchCapture(options, workload, name, report));
  }
  report.PrintTable();
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Measures views of quantised weights: bytes on the wire (P22) and capture (P21), beside "
      "BF16. CSV on stdout (id,case,ours,reference,ratio,unit), a table with the bars on stderr.",
      "tools/bench.sh quantised");
  app.add_option("--size", options.size_bytes,
                 "Bytes of BF16 weights for P21: 64MiB, 1GiB (default)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(kSizeMin, kSizeMax));
  app.add_option("--rounds", options.rounds, "Repetitions of each; the median counts (default 5)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", options.threads, "That capture (default 2)")
      ->check(CLI::Range(1, 256));
  app.add_option("--trace", options.trace,
                 "Folder of safetensors files: consecutive steps of one training run, by name. "
                 "Without one, P22 is left out and P21 uses synthetic weights");
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "quantised: {}\n", ToString(status));
  return 1;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
