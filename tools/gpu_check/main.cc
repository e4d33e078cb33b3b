// gpu_check: every test that needs a GPU and the benchmarks P8 to P10, in one program for machines
// that have a driver and no other part of DWS. docs/gpu.md says how it is run.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/gpu_check/child_section.h"
#include "tools/gpu_check/exporter/exporter.h"
#include "tools/gpu_check/sections/nccl_rank.h"
#include "tools/gpu_check/sections/sections.h"

namespace dws::gpu_check {
namespace {

constexpr uint64_t kSizeMin = uint64_t{1} << 20;
constexpr uint64_t kSizeMax = uint64_t{1} << 37;

// Runs in its own process and prints its results. Returns the exit status.
int RunSection(const Section& section, const Options& options) {
  Result<BenchDevice> device = OpenBenchDevice(options);
  if (!device.ok()) {
    Results(std::string(section.name), false).Failed("the device can be used", device.status());
    return 1;
  }
  Results results(std::string(section.name), device->fake());
  const Status status = section.run(options, *device, results);
  if (status.ok()) return 0;
  results.Failed("the section as a whole", status);
  return 1;
}

std::string KernelTestsOf(const Options& options) {
  if (!options.kernel_tests.empty()) return options.kernel_tests;
  char self[4096] = {};
  if (::readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) return "";
  const std::string path = self;
  return path.substr(0, path.rfind('/') + 1) + "gpu_tests";
}

SectionRun RunOf(const Section& section, const Options& options) {
  SectionRun run{.section = std::string(section.name),
                 .seconds_max = section.seconds_max * options.time_factor};
  if (!section.tests.empty()) {
    run.program = KernelTestsOf(options);
    run.arguments = {"--filenames-as-tags", std::string(section.tests)};
    return run;
  }
  run.arguments = {"--section=" + run.section, fmt::format("--size={}", options.size_bytes),
                   fmt::format("--rounds={}", options.rounds)};
  if (!options.gpu.empty()) run.arguments.push_back("--gpu=" + options.gpu);
  if (!options.kernels.empty()) run.arguments.push_back("--kernels=" + options.kernels);
  return run;
}

// Runs every section in a child. Returns whether nothing failed.
bool RunAll(const Options& options) {
  std::vector<CheckResult> results;
  for (const Section& section : Sections()) {
    const bool wanted = options.only.empty() || std::find(options.only.begin(), options.only.end(),
                                                          section.name) != options.only.end();
    if (!wanted) continue;
    const SectionRun run = RunOf(section, options);
    if (!section.tests.empty() && ::access(run.program.c_str(), X_OK) != 0) {
      const CheckResult skipped{.section = run.section,
                                .name = "tests of gpu_tests",
                                .verdict = CheckResult::Verdict::kSkipped,
                                .note = "there is no program " + run.program};
      fmt::print("{}\n", ToLine(skipped, false));
      results.push_back(skipped);
      continue;
    }
    RunInChild(run, results);
  }
  const Totals totals = PrintTable(results);
  fmt::print(stderr, "\n");
  fmt::print("{} passed, {} failed, {} skipped\n", totals.passed, totals.failed, totals.skipped);
  return totals.failed == 0 && totals.passed > 0;
}

int Main(int argc, char** argv) {
  Options options;
  std::string section_name;
  bool exporter = false;
  NcclRank rank;
  std::vector<std::string> names;
  for (const Section& section : Sections()) names.emplace_back(section.name);

  CLI::App app(
      "Runs everything of DWS that needs a GPU: tests, and the benchmarks P8 to P10. One JSON line "
      "for each check on stdout, then \"N passed, M failed, K skipped\"; a table on stderr.",
      "gpu_check");
  app.add_option(
         "--size", options.size_bytes,
         "Bytes of weights for the benchmarks: 1GiB, 16GiB (default); less if they do not fit")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(kSizeMin, kSizeMax));
  app.add_option("--rounds", options.rounds, "Repetitions of each measurement; the median counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--time-factor", options.time_factor, "Factor for the time limit of each section")
      ->check(CLI::Range(1, 100));
  app.add_option("--gpu", options.gpu, "The device, by UUID (GPU-...); default: the first");
  app.add_option("--only", options.only, "Sections to run, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--kernel-tests", options.kernel_tests,
                 "The program gpu_tests, if it is not beside this one");
  app.add_option("--kernels", options.kernels,
                 "A fat binary or cubin made of kernels.cu: the sections bench and slowdown use it "
                 "instead of the kernels in this program")
      ->check(CLI::ExistingFile);
  app.add_option("--section", section_name)->check(CLI::IsMember(names))->group("");
  app.add_flag("--exporter", exporter)->group("");
  app.add_option("--nccl-id", rank.id)->group("");
  app.add_option("--nccl-rank", rank.rank)->group("");
  app.add_option("--nccl-size", rank.size)->group("");
  app.add_option("--nccl-role", rank.role)->group("");
  CLI11_PARSE(app, argc, argv);

  RaiseDescriptorLimit();
  if (exporter) return RunExporter(options.gpu);
  if (!rank.id.empty()) return RunNcclRank(options.gpu, rank);
  for (const Section& section : Sections()) {
    if (section.name == section_name && section.run != nullptr) return RunSection(section, options);
  }
  return RunAll(options) ? 0 : 1;
}

}  // namespace
}  // namespace dws::gpu_check

int main(int argc, char** argv) { return dws::gpu_check::Main(argc, argv); }
