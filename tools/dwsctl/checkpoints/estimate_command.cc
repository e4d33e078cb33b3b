#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tools/checkpoint/estimate.h"
#include "tools/dwsctl/base/bandwidth.h"
#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/checkpoints/estimate_text.h"

namespace dws::dwsctl {
namespace {

struct EstimateFlags {
  CheckpointFlags run;
  std::string a;
  std::string b;
  std::vector<std::string> bandwidths = {"1 Gbit/s", "10 Gbit/s", "300 MB/s"};
  std::vector<std::string> views;
  uint64_t groups = 20;
  bool no_slime = false;
};

ExitCode RunEstimate(const EstimateFlags& flags, Console& console) {
  // Parse the flags before the work, which may take minutes.
  std::vector<Bandwidth> bandwidths;
  for (const std::string& text : flags.bandwidths) {
    const std::optional<Bandwidth> parsed = ParseBandwidth(text);
    if (!parsed.has_value()) {
      return Fail(console, InvalidArgumentError(
                               "--bandwidth {}: expected a speed as 300MB/s or 10Gbit/s", text));
    }
    bandwidths.push_back(*parsed);
  }
  const auto run = CheckpointRun::Start(flags.run, console);
  if (!run.ok()) return FailCheckpoint(console, run.status());
  const auto a = OpenSettled(flags.a);
  if (!a.ok()) return FailCheckpoint(console, a.status());
  const auto b = OpenSettled(flags.b);
  if (!b.ok()) return FailCheckpoint(console, b.status());
  const auto estimate = checkpoint::EstimateSync(
      *a, *b, {.slime = !flags.no_slime, .views = flags.views}, (*run)->pool(), (*run)->progress());
  (*run)->Clear();
  if (!estimate.ok()) return FailCheckpoint(console, estimate.status());
  const EstimateView view{
      .estimate = *estimate, .bandwidths = bandwidths, .groups_max = flags.groups};
  console.Out(flags.run.json ? FormatEstimateJson(view) : FormatEstimate(view));
  return estimate->mismatches.empty() ? ExitCode::kOk : ExitCode::kMismatch;
}

}  // namespace

void AddEstimateCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<EstimateFlags>();
  CLI::App* command = AddCommand(
      app, kFilesGroup, "estimate",
      "Shows what syncing from one checkpoint to another would take.\n"
      "\n"
      "Compares two safetensors checkpoints and encodes the difference: density by group of\n"
      "tensors, sizes as delta objects, as slime's files and in full, and how long these take to\n"
      "transfer; with --view, sizes of what quantised engines take, too. Contacts no daemon, "
      "writes\n"
      "nothing. Exits with 5 when tensors are in one of them only, or have another dtype or "
      "shape;\n"
      "the others are compared.",
      {"dwsctl estimate step_100/ step_101/",
       "dwsctl estimate --bandwidth=300MB/s --bandwidth=25Gbit/s step_100/ step_101/",
       "dwsctl estimate --view=fp8-block128/deepseek,except=lm_head.weight step_100/ step_101/",
       "dwsctl estimate --json --no-slime step_100/ step_101/ | jq .fast_bytes"},
      flags->run.json);
  command->add_option("A", flags->a, "the checkpoint before: a file or a folder")
      ->type_name(kFileValue)
      ->required();
  command->add_option("B", flags->b, "the checkpoint after")->type_name(kFileValue)->required();
  command
      ->add_option("--bandwidth", flags->bandwidths,
                   "a speed to give times for: 300MB/s, 10Gbit/s, 1.5GiB/s; may be repeated")
      ->type_name("SPEED")
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      ->add_option("--view", flags->views,
                   "a view that engines may follow: RECIPE[,except=PATTERN]...; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_option("--groups", flags->groups, "groups to show, those with most changes")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--no-slime", flags->no_slime, "leave out slime's size, which takes longest");
  AddCheckpointFlags(*command, flags->run);
  command->callback([flags, &context] { context.code = RunEstimate(*flags, context.console); });
}

}  // namespace dws::dwsctl
