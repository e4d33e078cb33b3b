// Runs seeds of the simulation: tools/simulate.sh.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tests/simulation/train/train_world.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

template <typename Model>
void Explain(uint64_t seed, const std::string& violation) {
  Model world({.seed = seed, .trace = true});
  world.Run();
  for (const std::string& line : world.trace()) fmt::print("{}\n", line);
  fmt::print("seed {}: {}\n", seed, violation);
}

// `goal`: what `Done` counts.
template <typename Model>
int Run(uint64_t first, uint64_t count, bool trace, std::string_view goal,
        uint64_t (*done)(const Model&)) {
  const auto began = std::chrono::steady_clock::now();
  uint64_t events = 0;
  uint64_t faults = 0;
  uint64_t reached = 0;
  std::map<std::string_view, uint64_t> seen;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Model world({.seed = seed});
    const std::string violation = world.Run();
    if (!violation.empty() || trace) {
      Explain<Model>(seed, violation.empty() ? "no violation" : violation);
      if (!violation.empty()) return 1;
    }
    events += world.events.happened();
    faults += world.faults;
    reached += done(world);
    for (const auto& [what, count_seen] : world.seen) seen[what] += count_seen;
  }
  for (const auto& [what, times] : seen) fmt::print("{:>10} times {}\n", times, what);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  fmt::print(
      "{} seeds from {}: {} events, {} faults, {} {}, no violation; {:.1f} s, {:.0f} seeds/s\n",
      count, first, events, faults, reached, goal, seconds, static_cast<double>(count) / seconds);
  return 0;
}

// Prints how many seeds it takes to detect each mutation.
template <typename Model>
int NoticeMutations(uint64_t seeds,
                    std::span<const std::pair<Mutation, std::string_view>> mutations) {
  int missed = 0;
  for (const auto& [mutation, name] : mutations) {
    uint64_t seed = 1;
    std::string violation;
    for (; seed <= seeds && violation.empty(); ++seed) {
      violation = Model({.seed = seed, .mutation = mutation}).Run();
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
  std::string model = "sync";
  app.add_option("--model", model,
                 "sync: versions from trainers to engines; train: on-demand training")
      ->check(CLI::IsMember({"sync", "train"}));
  CLI11_PARSE(app, argc, argv);
  using dws::sim::TrainWorld;
  using dws::sim::World;
  if (model == "train") {
    if (mutations) return dws::sim::NoticeMutations<TrainWorld>(seeds, dws::sim::kTrainMutations);
    return dws::sim::Run<TrainWorld>(first, seeds, trace, "steps",
                                     [](const TrainWorld& world) { return world.steps; });
  }
  if (mutations) return dws::sim::NoticeMutations<World>(seeds, dws::sim::kMutations);
  return dws::sim::Run<World>(first, seeds, trace, "commits",
                              [](const World& world) { return world.commits; });
}
