// What a user of GPUs waits for (P30 to P34, P38), as a model: the daemons' own code over the
// tests' fake driver and its clock. CSV on stdout, tables on stderr. None of it is measured.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tools/bench/gpu/gpu_job.h"
#include "tools/bench/gpu/time_split.h"
#include "tools/bench/measure/synthetic.h"

namespace dws::bench {
namespace {

constexpr uint64_t kSizeMin = uint64_t{4} << 20;
constexpr uint64_t kSizeMax = uint64_t{8} << 30;
// 2.8 billion BF16 parameters, to which the times are extrapolated by bytes.
constexpr double kLargeBytes = 5.6e9;
constexpr uint64_t kColumns = 4096;
constexpr uint64_t kTensorBytesMax = uint64_t{64} << 20;

struct Options {
  uint64_t size_bytes = uint64_t{512} << 20;
  double changed_percent = 1;
  int rounds = 3;
  size_t threads = 2;
};

// A figure, or a stage of one.
struct Row {
  std::string id;  // "P30"; of a stage: the version that it is a part of
  std::string what;
  TimeSplit split;
};

Result<Workload> MakeWorkload(const Options& options) {
  const uint64_t rows = std::min(options.size_bytes, kTensorBytesMax) / 2 / kColumns;
  Versions versions = MakeBf16(rows * kColumns, options.changed_percent / 100);
  std::vector<TensorPair> tensors;
  tensors.push_back({.spec = {.name = "weight", .dtype = DType::kBF16, .shape = {rows, kColumns}},
                     .before = std::move(versions.before),
                     .after = std::move(versions.after)});
  return Workload::Tile(std::move(tensors), options.size_bytes);
}

double LengthOf(const Timeline& timeline) {
  return timeline.stages.back().end - timeline.stages.front().begin;
}

Timeline MedianOf(std::vector<Timeline> timelines) {
  const auto middle = timelines.begin() + static_cast<ptrdiff_t>(timelines.size() / 2);
  std::nth_element(timelines.begin(), middle, timelines.end(),
                   [](const Timeline& a, const Timeline& b) { return LengthOf(a) < LengthOf(b); });
  return std::move(*middle);
}

// Appends a row for each stage and returns their sum.
TimeSplit AddStages(const char* version, const Timeline& timeline, std::vector<Row>& rows) {
  TimeSplit all;
  for (const Stage& stage : timeline.stages) {
    rows.push_back({.id = version,
                    .what = stage.name,
                    .split = SplitTime(timeline.log, stage.begin, stage.end)});
    all += rows.back().split;
  }
  return all;
}

const Row* FindRow(const std::vector<Row>& rows, std::string_view what) {
  const auto found = std::ranges::find(rows, what, &Row::what);
  return found == rows.end() ? nullptr : &*found;
}

Result<std::vector<Row>> RunJob(const Options& options, const Workload& workload,
                                const cuda::GpuModel& model) {
  DWS_ASSIGN_OR_RETURN(const auto job, GpuJob::Create(workload, options.threads, model));
  DWS_ASSIGN_OR_RETURN(const Timeline first, job->First());
  DWS_RETURN_IF_ERROR(job->CheckEngine());
  std::vector<Timeline> deltas;
  std::vector<Timeline> listed;
  std::vector<Timeline> fulls;
  for (int round = -1; round < options.rounds; ++round) {  // the first takes memory
    DWS_ASSIGN_OR_RETURN(Timeline delta, job->Delta());
    DWS_RETURN_IF_ERROR(job->CheckEngine());
    if (round >= 0) deltas.push_back(std::move(delta));
  }
  for (int round = -1; round < options.rounds; ++round) {
    DWS_ASSIGN_OR_RETURN(Timeline delta, job->Delta(/*listed=*/true));
    DWS_RETURN_IF_ERROR(job->CheckEngine());
    if (round >= 0) listed.push_back(std::move(delta));
  }
  for (int round = -1; round < options.rounds; ++round) {
    DWS_ASSIGN_OR_RETURN(Timeline full, job->Full());
    DWS_RETURN_IF_ERROR(job->CheckEngine());
    if (round >= 0) fulls.push_back(std::move(full));
  }
  std::vector<Row> rows;
  const TimeSplit delta = AddStages("delta", MedianOf(std::move(deltas)), rows);
  const Row* const stall = FindRow(rows, kStall);
  if (stall == nullptr) return InternalError("a delta was encoded before its publish returned");
  const TimeSplit read = stall->split;
  const TimeSplit commit = FindRow(rows, kCommit)->split;
  std::vector<Row> of_listed;
  AddStages("lists", MedianOf(std::move(listed)), of_listed);
  const Row* const proved = FindRow(of_listed, kStall);
  if (proved == nullptr) return InternalError("a listed delta was encoded before the answer");
  rows.push_back(*proved);
  const TimeSplit whole_first = AddStages("first", first, rows);
  const TimeSplit full = AddStages("full", MedianOf(std::move(fulls)), rows);
  rows.push_back({.id = "P30", .what = "stall of a delta", .split = read});
  rows.push_back({.id = "P31", .what = "publish to commit of a delta", .split = delta});
  rows.push_back({.id = "P32", .what = "engine's wait at a delta's commit", .split = commit});
  rows.push_back({.id = "P33", .what = "first version", .split = whole_first});
  rows.push_back({.id = "P34", .what = "a version in which everything changed", .split = full});
  rows.push_back({.id = "P38", .what = "stall of a listed delta", .split = proved->split});
  return rows;
}

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

void Print(const std::vector<Row>& rows, const std::string& host, double large) {
  fmt::print(stderr, "\nMODEL, not a measurement: {}. Milliseconds.\n", host);
  fmt::print(stderr, "{:<6}{:<50}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>8}{:>9}{:>8}\n", "id",
             "model of", "all", "5.6 GB*", "compute", "to GPU", "to host", "waits", "over-", "idle",
             "host", "hidden");
  fmt::print(stderr, "{:>121}{:>17}\n", "lapped", "+memory");
  for (const Row& row : rows) {
    const TimeSplit& s = row.split;
    fmt::print("{},{},{},{:.4f},{:.3f},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{:.3f},{:.3f}\n",
               row.id, row.what, host, s.whole * 1e3, s.whole * large * 1e3, s.compute * 1e3,
               s.to_device * 1e3, s.to_host * 1e3, s.waits * 1e3, s.memory * 1e3, s.host * 1e3,
               Share(s.waits_overlapped, s.waits), Share(s.hidden, s.busy));
    fmt::print(stderr,
               "{:<6}{:<50}{:>9.2f}{:>9.1f}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>8.2f}{:>8.2f}"
               "{:>9.2f}{:>8.2f}\n",
               row.id, row.what, s.whole * 1e3, s.whole * large * 1e3, s.compute * 1e3,
               s.to_device * 1e3, s.to_host * 1e3, s.waits * 1e3,
               Share(s.waits_overlapped, s.waits), Share(s.waits_idle, s.waits),
               (s.host + s.memory) * 1e3, Share(s.hidden, s.busy));
  }
}

Status Run(const Options& options) {
  DWS_ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(options));
  const auto bytes = static_cast<double>(workload.model_bytes());
  fmt::print(
      "id,model_of,model_host,model_ms,model_ms_at_5.6_GB,model_compute_ms,model_to_device_ms,"
      "model_to_host_ms,model_waits_ms,model_memory_ms,model_host_ms,model_waits_overlapped,"
      "model_work_hidden\n");
  fmt::print(stderr,
             "MODEL of an H100 behind PCIe 5.0 x16: {:.0f} MiB of BF16 weights, {:.2f} % changed.\n"
             "*5.6 GB: extrapolated by bytes, also what a program does once.\n",
             bytes / (1 << 20), workload.density() * 100);
  for (const bool counts : {false, true}) {
    cuda::GpuModel model = cuda::GpuModel::H100();
    model.host_counts = counts;
    DWS_ASSIGN_OR_RETURN(const std::vector<Row> rows, RunJob(options, workload, model));
    Print(rows,
          counts ? fmt::format("host with {} threads of this machine", options.threads)
                 : "host that takes no time: the GPU and the bus alone",
          kLargeBytes / bytes);
  }
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "A MODEL, not a measurement: what trainer and engine wait for if their weights are on one "
      "GPU "
      "(P30 to P34, P38), by stage and engine. The daemons' code runs over a fake driver that "
      "counts "
      "what "
      "an H100 would take. CSV on stdout, tables on stderr. waits: a thread of the host waits for "
      "the GPU; overlapped, idle: the shares of it with two engines or none busy. hidden: the "
      "share "
      "of the GPU's busy time in which no thread waits for it.",
      "tools/bench.sh gpu");
  app.add_option("--size", options.size_bytes, "Bytes of BF16 weights: 256MiB, 512MiB (default)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(kSizeMin, kSizeMax));
  app.add_option("--changed", options.changed_percent,
                 "Percent of the elements that a delta changes (default 1)")
      ->check(CLI::Range(0.001, 50.0));
  app.add_option("--rounds", options.rounds,
                 "Deltas and full versions; the median counts (default 3)")
      ->check(CLI::Range(1, 100));
  app.add_option("--threads", options.threads, "Of the host (default 2)")
      ->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "gpu: {}\n", ToString(status));
  return 1;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
