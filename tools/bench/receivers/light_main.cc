// Runs many light receivers (light_receiver.h) of one sender in one process, each over a connection
// of its own, and answers questions about them.
//
//   light_receiver --sender=HOST:PORT --job-id=JOB --count=N
//
// For each line "at VERSION" on stdin one line of JSON on stdout; ends at the end of stdin.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>

#include "common/base/log/log.h"
#include "common/base/threads/loop_thread.h"
#include "common/model/limits.h"
#include "tools/bench/receivers/light_receiver.h"

namespace dws::bench {
namespace {

constexpr rlim_t kOtherDescriptors = 64;

using Receivers = std::vector<std::unique_ptr<LightReceiver>>;

// Two connections of a receiver overlap while it connects again.
bool HasDescriptors(size_t receivers) {
  rlimit limit{};
  const rlim_t wanted = 2 * receivers + kOtherDescriptors;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= wanted) return true;
  fmt::print(stderr,
             "{} receivers need {} descriptors, at most {} are allowed: raise the hard limit "
             "(ulimit -Hn)\n",
             receivers, wanted, limit.rlim_max);
  return false;
}

// How many receivers have `version` or a newer one, when each of them committed that version itself
// (seconds of CLOCK_MONOTONIC), and totals.
std::string Answer(const Receivers& receivers, WeightVersion version) {
  size_t at = 0;
  LightReceiver::View all;
  std::vector<double> times;
  for (const auto& receiver : receivers) {
    const LightReceiver::View view = receiver->view();
    at += view.committed >= version ? 1 : 0;
    all.deltas += view.deltas;
    all.described += view.described;
    all.fetched_bytes += view.fetched_bytes;
    all.failures += view.failures;
    if (!view.trouble.empty()) all.trouble = view.trouble;
    for (const auto& [committed, time] : view.commits) {
      if (committed == version) times.push_back(ToSeconds(time.time_since_epoch()));
    }
  }
  std::sort(times.begin(), times.end());
  if (!all.trouble.empty()) LogError("light_receivers_failed", {{"last", all.trouble}});
  return fmt::format(
      R"({{"at": {}, "deltas": {}, "described": {}, "fetched_bytes": {}, "failures": {}, "times": [{:.6f}]}})",
      at, all.deltas, all.described, all.fetched_bytes, all.failures, fmt::join(times, ", "));
}

int Run(const LightReceiver::Options& options, size_t count) {
  if (!HasDescriptors(count)) return 2;
  const RealClock clock;
  Receivers receivers;
  for (size_t i = 0; i < count; ++i) {
    LightReceiver::Options one = options;
    one.receiver_id = fmt::format("{}-{:04}", options.receiver_id, i);
    receivers.push_back(std::make_unique<LightReceiver>(one, clock));
  }
  for (const auto& receiver : receivers) receiver->Start();
  LoopThread ticks([&] {
    for (const auto& receiver : receivers) receiver->Tick();
    LogRepeatCounts();
    return Duration(limits::kTick);
  });
  ticks.Start();
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    uint64_t version = 0;
    if (!(words >> verb >> version) || verb != "at") {
      fmt::print(stderr, "expected 'at VERSION', found '{}'\n", line);
      return 2;
    }
    fmt::print("{}\n", Answer(receivers, WeightVersion(version)));
    std::fflush(stdout);
  }
  ticks.Stop();
  for (const auto& receiver : receivers) receiver->BeginStop();
  return 0;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) {
  dws::bench::LightReceiver::Options options;
  size_t count = 1;
  std::string profile = "auto";
  CLI::App app("Many receivers without engines, for loading one sender.", "light_receiver");
  app.add_option("--sender", options.sender, "its address: HOST:PORT or unix:PATH")->required();
  app.add_option("--job-id", options.job_id, "the job")->required();
  app.add_option("--count", count, "receivers")
      ->check(CLI::Range(size_t{1}, dws::limits::kReceiversMax));
  app.add_option("--prefix", options.receiver_id, "of their ids")->default_val("light");
  app.add_option("--profile", profile, "the encoding to ask for")
      ->check(CLI::IsMember({"auto", "fast", "wan", "direct"}));
  CLI11_PARSE(app, argc, argv);
  options.profile = *dws::ProfileChoiceNamed(profile);
  dws::InitLog("light_receiver", dws::LogLevel::kError, dws::LogFormat::kText);
  return dws::bench::Run(options, count);
}
