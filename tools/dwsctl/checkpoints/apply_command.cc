#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "tools/checkpoint/apply.h"
#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

struct ApplyFlags {
  CheckpointFlags run;
  std::string base;
  std::vector<std::string> deltas;
  std::string out;
};

// One line: text for people, or with --json a JSON object.
std::string FormatApplied(const checkpoint::AppliedVersion& made, const ApplyFlags& flags) {
  if (!flags.run.json) {
    return fmt::format("{}: version {}, {} of weights, {} tensors changed\n",
                       Printable(flags.out, 200), made.version, FormatBytes(made.bytes),
                       FormatCount(made.changed_tensors));
  }
  const nlohmann::json object = {{"path", flags.out},
                                 {"version", made.version},
                                 {"changed_tensors", made.changed_tensors},
                                 {"bytes", made.bytes}};
  // Paths need not be UTF-8: replace bad bytes instead of throwing.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

ExitCode RunApply(const ApplyFlags& flags, Console& console) {
  const auto run = CheckpointRun::Start(flags.run, console);
  if (!run.ok()) return FailCheckpoint(console, run.status());
  // ApplyDeltas proves the chain before it writes, so a refused run leaves no output behind.
  PosixFileSystem files;
  const auto made =
      checkpoint::ApplyDeltas(files, {.base = flags.base, .deltas = flags.deltas, .out = flags.out},
                              (*run)->pool(), (*run)->progress());
  (*run)->Clear();
  if (!made.ok()) return FailCheckpoint(console, made.status());
  console.Out(FormatApplied(*made, flags));
  return ExitCode::kOk;
}

}  // namespace

void AddApplyCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<ApplyFlags>();
  CLI::App* command = AddCommand(
      app, kFilesGroup, "apply",
      "Applies delta objects to a checkpoint and writes the result as a new one.\n"
      "\n"
      "Deltas are given in order, each the base of the next. Digests prove the base and every\n"
      "step before anything is written; exits with 5 when something does not follow. All other\n"
      "files of the new checkpoint are the base's.",
      {"dwsctl apply step_100/ 101.dws -o step_101/",
       "dwsctl apply step_100/ 101.dws 102.dws 103.dws -o step_103/"},
      flags->run.json);
  command->add_option("BASE", flags->base, "the checkpoint to begin with: a file or a folder")
      ->type_name(kFileValue)
      ->required();
  command->add_option("DELTA", flags->deltas, "delta objects, in order")
      ->type_name(kFileValue)
      ->required();
  command->add_option("-o,--output", flags->out, "the checkpoint to write")
      ->type_name(kFileValue)
      ->required();
  AddCheckpointFlags(*command, flags->run);
  command->callback([flags, &context] { context.code = RunApply(*flags, context.console); });
}

}  // namespace dws::dwsctl
