// Runs seeds of the simulation: tools/simulate.sh.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

void Explain(uint64_t seed, const std::string& violation) {
  World world({.seed = seed, .trace = true});
  world.Run();
  for (const std::string& line : world.trace()) fmt::print("{}\n", line);
  fmt::print("seed {}: {}\n", seed, violation);
}

int Run(uint64_t first, uint64_t count, bool trace) {
  const auto began = std::chrono::steady_clock::now();
  uint64_t events = 0;
  uint64_t faults = 0;
  uint64_t commits = 0;
  std::map<std::string_view, uint64_t> seen;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    World world({.seed = seed});
    const std::string violation = world.Run();
    if (!violation.empty() || trace) {
      Explain(seed, violation.empty() ? "no violation" : violation);
      if (!violation.empty()) return 1;
    }
    events += world.events.happened();
    faults += world.faults;
    commits += world.commits;
    for (const auto& [what, count_seen] : world.seen) seen[what] += count_seen;
  }
  for (const auto& [what, times] : seen) fmt::print("{:>10} times {}\n", times, what);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  fmt::print(
      "{} seeds from {}: {} events, {} faults, {} commits, no violation; {:.1f} s, {:.0f} "
      "seeds/s\n",
      count, first, events, faults, commits, seconds, static_cast<double>(count) / seconds);
  return 0;
}

// Prints how many seeds it takes to detect each mutation.
int NoticeMutations(uint64_t seeds) {
  int missed = 0;
  for (const auto& [mutation, name] : kMutations) {
    uint64_t seed = 1;
    std::string violation;
    for (; seed <= seeds && violation.empty(); ++seed) {
      violation = World({.seed = seed, .mutation = mutation}).Run();
    }
    missed += violation.empty() ? 1 : 0;
    fmt::print("{:<20} {:>6} {}\n", name, seed - 1, violation.empty() ? "NOT NOTICED" : violation);
  }
  return missed;
}

}  // namespace
}  // namespace dws::sim

int main(int argc, char** argv) {
  CLI::App app(
      "Runs the seeded simulation of the protocol; stops at the first seed that violates it");
  uint64_t first = 1;
  uint64_t seeds = 1000;
  bool trace = false;
  app.add_option("--seeds", seeds, "how many")->check(CLI::PositiveNumber);
  app.add_option("--first", first, "the first of them");
  app.add_flag("--trace", trace, "print what happens in each");
  bool mutations = false;
  app.add_flag("--mutations", mutations,
               "how many of the seeds each broken rule needs to be noticed");
  CLI11_PARSE(app, argc, argv);
  if (mutations) return dws::sim::NoticeMutations(seeds);
  return dws::sim::Run(first, seeds, trace);
}
