// Gathers units whose shards have several owners on this host, beside a copy of the same bytes past
// the cache from the owners' snapshots, by as many threads: what is left over is locks, calls,
// stamps and digests. All owners run in this process; what is gathered is mapped from them as from
// others.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/memory/host/host_region.h"
#include "common/memory/stream_copy.h"
#include "sender_daemon/on_demand/gather/gather.h"
#include "tests/sender_daemon/on_demand/owner.h"
#include "tests/sender_daemon/on_demand/silent_listener.h"
#include "tools/bench/measure/report.h"
#include "tools/bench/measure/timing.h"

namespace dws::bench {
namespace {

constexpr uint64_t kColumns = 4096;
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr Bar kBar = AtLeast(0.8);
constexpr std::chrono::seconds kTimeout{60};

struct Options {
  uint64_t unit_mib = 64;
  uint32_t units = 4;
  uint32_t tensors = 8;  // a unit
  uint32_t threads = 2;
  int rounds = 15;
};

// Units of BF16 tensors, shared by rows over `ranks` ranks with a real sender's parts each.
class Job {
 public:
  Job(const Options& options, uint32_t ranks) : options_(options) {
    const uint64_t rows = (options.unit_mib << 20) / options.tensors / kColumns / 2;
    std::vector<std::vector<Shard>> shards(ranks);
    for (uint32_t unit = 0; unit < options.units; ++unit) {
      units_.push_back({.name = fmt::format("layers.{:03}", unit), .tensors = {}});
      for (uint32_t t = 0; t < options.tensors; ++t) {
        TensorSpec spec{.name = fmt::format("layers.{:03}.{:03}", unit, t),
                        .dtype = DType::kBF16,
                        .shape = {rows, kColumns}};
        std::vector<uint64_t> at;
        for (uint32_t r = 1; r < ranks; ++r) at.push_back(rows * r / ranks);
        if (!at.empty()) spec.cuts = {{0, at}};
        units_.back().tensors.push_back(spec.name);
        for (uint32_t r = 0; r < ranks; ++r) {
          CellBox cells;
          if (!at.empty()) cells = {{r, 1}};
          shards[r].push_back({.tensor = spec, .cells = std::move(cells)});
        }
      }
    }
    std::mt19937_64 random(1);
    for (uint32_t r = 0; r < ranks; ++r) {
      const RankLayout layout = MakeLayout(std::move(shards[r]));
      owners_.push_back(std::make_unique<Owner>(Owner::Options{.rank = r, .world = ranks}, layout));
      owners_.back()->Publish(1, RandomWeights(layout, random));
    }
  }

  Result<std::unique_ptr<Gather>> Open(ThreadPool& pool, const std::string& way) {
    Gather::Options options;
    options.units = units_;
    options.only = way;
    options.spool_folder = "/tmp";
    options.fabric.on = way == "fabric";
    OwnerLinks::Options to;
    to.job_id = "job";
    for (const auto& owner : owners_) to.addresses.push_back(owner->address());
    DWS_ASSIGN_OR_RETURN(links_, OwnerLinks::Create(to, listener_, clock_));
    return Gather::Create(std::move(options), *links_, pool, clock_);
  }
  UnitAt At(uint32_t unit) const {
    return {.unit = UnitIndex(unit), .at = {.stream = kTrainStream, .version = WeightVersion(1)}};
  }
  Gather::Wanted wanted() const { return {.deadline = clock_.Now() + kTimeout}; }
  // The part's bytes in its owner's snapshot, and where they go.
  ByteSpan Bytes(const UnitPlan::Part& part, size_t slice) const {
    return owners_[part.owner.value()]->state()->snapshot->SliceBytes(part.slices[slice]);
  }

 private:
  const Options options_;
  RealClock clock_;
  std::vector<UnitSpec> units_;
  std::vector<std::unique_ptr<Owner>> owners_;
  SilentListener listener_;
  std::unique_ptr<OwnerLinks> links_;  // of the last gather
};

struct Piece {
  ByteSpan from;
  MutableByteSpan to;
};

std::vector<Piece> PiecesOf(const Job& job, const UnitPlan& plan, MutableByteSpan to) {
  std::vector<Piece> pieces;
  for (const UnitPlan::Part& part : plan.parts()) {
    for (size_t i = 0; i < part.slices.size(); ++i) {
      const ByteSpan from = job.Bytes(part, i);
      for (uint64_t at = 0; at < from.size(); at += kPieceBytes) {
        const uint64_t size = std::min<uint64_t>(kPieceBytes, from.size() - at);
        pieces.push_back(
            {from.subspan(at, size), to.subspan(part.places[i].first_byte + at, size)});
      }
    }
  }
  return pieces;
}

Status Measure(const Options& options, uint32_t ranks, const std::string& way, Report& report) {
  Job job(options, ranks);
  ThreadPool pool(options.threads - 1);
  DWS_ASSIGN_OR_RETURN(const auto gather, job.Open(pool, way));
  std::vector<std::shared_ptr<const UnitPlan>> plans;
  for (uint32_t unit = 0; unit < options.units; ++unit) {
    DWS_ASSIGN_OR_RETURN(auto plan, gather->Plan(UnitIndex(unit), kTrainStream, job.wanted()));
    plans.push_back(std::move(plan));
  }
  const uint64_t unit_bytes = plans[0]->size_bytes();
  DWS_ASSIGN_OR_RETURN(CreatedRegion gathered, CreateHostRegion("bench-gathered", unit_bytes));
  DWS_ASSIGN_OR_RETURN(CreatedRegion copied, CreateHostRegion("bench-copied", unit_bytes));
  Status status;
  const auto copy = [&](const auto& one) {
    for (const auto& plan : plans) {
      const std::vector<Piece> pieces = PiecesOf(job, *plan, copied.region.mutable_bytes());
      pool.ParallelFor(pieces.size(), [&](size_t i, size_t) { one(pieces[i].to, pieces[i].from); });
    }
  };
  const std::vector<Contender> contenders = {
      {.run =
           [&] {
             for (uint32_t unit = 0; unit < options.units; ++unit) {
               status.Update(
                   gather->Run(job.At(unit), gathered.region.mutable_bytes(), job.wanted()));
             }
           }},
      {.run = [&] { copy(StreamCopy); }},
      {.run = [&] {
        copy([](MutableByteSpan to, ByteSpan from) {
          std::memcpy(to.data(), from.data(), from.size());
        });
      }}};
  const std::vector<double> seconds = MedianSeconds(contenders, options.rounds);
  DWS_RETURN_IF_ERROR(status);
  if (!std::ranges::equal(gathered.region.bytes(), copied.region.bytes())) {
    return DataLossError("a gathered unit is not what its owners have");
  }
  const double gigabytes = static_cast<double>(unit_bytes * options.units) * 1e-9;
  const auto add = [&](const char* beside, double reference, std::optional<Bar> bar) {
    report.Add({.id = "P23a",
                .what = fmt::format("units of {} MiB; {} owners; {} beside {}; {} threads",
                                    options.unit_mib, ranks, way, beside, options.threads),
                .ours = gigabytes / seconds[0],
                .reference = gigabytes / reference,
                .ratio = reference / seconds[0],
                .unit = "GB/s",
                .bar = bar});
  };
  const bool same_host = way == "same-host";
  add("a streamed copy", seconds[1], same_host ? std::optional(kBar) : std::nullopt);
  add("memcpy", seconds[2], std::nullopt);
  return OkStatus();
}

Status Run(const Options& options) {
  Report report;
  for (const uint32_t ranks : {1U, 2U, 4U, 8U}) {
    DWS_RETURN_IF_ERROR(Measure(options, ranks, "same-host", report));
  }
  DWS_RETURN_IF_ERROR(Measure(options, 4, "grpc", report));
  report.PrintTable();
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Measures gathers on one host. CSV on stdout (id,case,ours,reference,ratio,unit), a table "
      "with the bars on stderr.",
      "tools/bench.sh gather");
  app.add_option("--unit-mib", options.unit_mib, "Size of a unit (default 64)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--units", options.units, "How many units are gathered in a round (default 4)")
      ->check(CLI::Range(1, 64));
  app.add_option("--threads", options.threads, "That copy (default 2)")->check(CLI::Range(1, 256));
  app.add_option("--rounds", options.rounds, "Repetitions; the median counts (default 15)")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "gather: {}\n", ToString(status));
  return 1;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
