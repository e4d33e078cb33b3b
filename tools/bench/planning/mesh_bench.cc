// Measures planning: the plan of a trillion parameters between 256 trainer ranks and 128 engine
// ranks, against what it may take. CSV on stdout, a table with the bars on stderr.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>

#include "common/mesh/shapes/parallel_layout.h"
#include "common/mesh/traffic.h"
#include "tools/bench/measure/report.h"
#include "tools/bench/measure/timing.h"

namespace dws::bench {
namespace {

constexpr double kSecondsMax = 1;
constexpr double kGibMax = 1;

// Kimi-K2, as `dwsctl plan` makes its plan.
Result<mesh::Traffic> PlanTrillion() {
  const mesh::ModelShape& shape = *mesh::FindModel("kimi-k2");
  const mesh::ModelTensors model = mesh::TensorsOf(shape);
  DWS_ASSIGN_OR_RETURN(const mesh::MeshLayout from,
                       mesh::TrainerLayout(shape, model, {.tp = 8, .pp = 8, .dp = 4, .ep = 32}));
  DWS_ASSIGN_OR_RETURN(const mesh::MeshLayout to,
                       mesh::EngineLayout(shape, model, {.tp = 32, .ep = 32}, 4));
  DWS_ASSIGN_OR_RETURN(const mesh::Plan plan, mesh::MakePlan(model.catalogue, from, to, {}));
  return mesh::TrafficOf(plan, from.rank_count, to.rank_count);
}

Status Run(int rounds) {
  Report report;
  Status status;
  const std::vector<Contender> contenders{{.run = [&] { status = PlanTrillion().status(); }}};
  const double seconds = MedianSeconds(contenders, rounds).front();
  DWS_RETURN_IF_ERROR(status);
  report.Add({.id = "P19",
              .what = "plan of 1 T parameters between 256 and 128 ranks",
              .ours = seconds,
              .reference = kSecondsMax,
              .ratio = seconds / kSecondsMax,
              .unit = "s",
              .bar = AtMost(1)});
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double gib = static_cast<double>(usage.ru_maxrss) / (1 << 20);  // it is in KiB
  report.Add({.id = "P19",
              .what = "the same: memory of the process at its peak",
              .ours = gib,
              .reference = kGibMax,
              .ratio = gib / kGibMax,
              .unit = "GiB",
              .bar = AtMost(1)});
  report.PrintTable();
  return OkStatus();
}

int Main(int argc, char** argv) {
  int rounds = 5;
  CLI::App app(
      "Measures planning. CSV on stdout (id,case,ours,reference,ratio,unit), a table with the bars "
      "on "
      "stderr.",
      "tools/bench.sh mesh");
  app.add_option("--rounds", rounds, "Repetitions; the median counts (default 5)")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(rounds);
  if (status.ok()) return 0;
  fmt::print(stderr, "mesh: {}\n", ToString(status));
  return 1;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
