#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/file_system.h"
#include "tools/checkpoint/in_place.h"
#include "tools/checkpoint/materialize.h"
#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/checkpoints/materialized_text.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

struct ApplyFlags {
  CheckpointFlags run;
  std::string base;
  std::string delta;
  std::string out;
  bool in_place = false;
};

std::string OutcomeText(const checkpoint::InPlaceOutcome& outcome, const ApplyFlags& flags) {
  if (flags.run.json) {
    const nlohmann::json json = {{"path", flags.base},
                                 {"version", outcome.version},
                                 {"changed_tensors", outcome.changed_tensors},
                                 {"redo_bytes", outcome.redo_bytes},
                                 {"already_applied", outcome.already_applied},
                                 {"finished_earlier", outcome.finished_earlier}};
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  const std::string path = Printable(flags.base, 200);
  std::string text;
  if (outcome.finished_earlier) {
    text = fmt::format("{}: an apply that was interrupted has been completed\n", path);
  }
  if (outcome.already_applied) {
    return text + fmt::format("{}: version {}, nothing to write\n", path, outcome.version);
  }
  return text + fmt::format("{}: version {}, {} tensors changed in place, {} recorded before\n",
                            path, outcome.version, FormatCount(outcome.changed_tensors),
                            FormatBytes(outcome.redo_bytes));
}

ExitCode RunInPlace(const ApplyFlags& flags, CheckpointRun& run, Console& console) {
  PosixFileSystem files;
  const auto outcome = checkpoint::ApplyInPlace(
      files, {.checkpoint = flags.base, .deltas = std::span(&flags.delta, 1)}, run.pool(),
      run.progress());
  run.Clear();
  if (!outcome.ok()) return FailCheckpoint(console, outcome.status());
  console.Out(OutcomeText(*outcome, flags));
  return ExitCode::kOk;
}

// A new checkpoint or --in-place must be named: neither is a safe default, because one needs the
// space of a whole checkpoint and the other changes the input.
ExitCode RunApply(const ApplyFlags& flags, Console& console) {
  if (flags.in_place == !flags.out.empty()) {
    return Fail(console,
                InvalidArgumentError("apply: give -o OUT for a new checkpoint, or --in-place"));
  }
  const auto run = CheckpointRun::Start(flags.run, console);
  if (!run.ok()) return FailCheckpoint(console, run.status());
  if (flags.in_place) return RunInPlace(flags, **run, console);
  PosixFileSystem files;
  const auto made = checkpoint::Materialize(
      files, {.base = flags.base, .deltas = std::span(&flags.delta, 1), .out = flags.out},
      (*run)->pool(), (*run)->progress());
  (*run)->Clear();
  if (!made.ok()) return FailCheckpoint(console, made.status());
  console.Out(FormatMaterialized(*made, flags.out, flags.run.json));
  return ExitCode::kOk;
}

}  // namespace

void AddApplyCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<ApplyFlags>();
  CLI::App* command = AddCommand(
      app, "apply",
      "Brings a checkpoint to the version that a delta object leads to.\n"
      "\n"
      "As a new checkpoint, or in place. Before anything is written, digests prove that the\n"
      "checkpoint is the delta's base and what it will become; exits with 5 when it is another.\n"
      "An apply in place that was interrupted is completed by the same command.",
      {"dwsctl apply step_100/ step_101.dws -o step_101/",
       "dwsctl apply --in-place model/ step_101.dws"},
      flags->run.json);
  command->add_option("BASE", flags->base, "the checkpoint: a file or a folder")
      ->type_name(kFileValue)
      ->required();
  command->add_option("DELTA", flags->delta, "the delta object")->type_name(kFileValue)->required();
  command->add_option("-o,--output", flags->out, "the checkpoint to write")->type_name(kFileValue);
  command->add_flag("--in-place", flags->in_place, "change BASE itself");
  AddCheckpointFlags(*command, flags->run);
  command->callback([flags, &context] { context.code = RunApply(*flags, context.console); });
}

}  // namespace dws::dwsctl
