#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "tools/checkpoint/materialize.h"
#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/checkpoints/materialized_text.h"

namespace dws::dwsctl {
namespace {

struct MaterializeFlags {
  CheckpointFlags run;
  std::string base;
  std::vector<std::string> deltas;
  std::string out;
};

ExitCode RunMaterialize(const MaterializeFlags& flags, Console& console) {
  const auto run = CheckpointRun::Start(flags.run, console);
  if (!run.ok()) return FailCheckpoint(console, run.status());
  // Materialize proves the chain before it writes, so a refused run leaves no output behind.
  PosixFileSystem files;
  const auto made =
      checkpoint::Materialize(files, {.base = flags.base, .deltas = flags.deltas, .out = flags.out},
                              (*run)->pool(), (*run)->progress());
  (*run)->Clear();
  if (!made.ok()) return FailCheckpoint(console, made.status());
  console.Out(FormatMaterialized(*made, flags.out, flags.run.json));
  return ExitCode::kOk;
}

}  // namespace

void AddMaterializeCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<MaterializeFlags>();
  CLI::App* command = AddCommand(
      app, "materialize",
      "Writes a version as a checkpoint: a base, and the deltas that lead to it.\n"
      "\n"
      "Deltas are given in order, each the base of the next. Digests prove the base and every\n"
      "step before anything is written; exits with 5 when something does not follow. All other\n"
      "files of the new checkpoint are the base's.",
      {"dwsctl materialize --base step_100/ 101.dws 102.dws 103.dws -o step_103/"},
      flags->run.json);
  command->add_option("--base", flags->base, "the checkpoint to begin with: a file or a folder")
      ->type_name(kFileValue)
      ->required();
  command->add_option("DELTA", flags->deltas, "delta objects, in order")
      ->type_name(kFileValue)
      ->required();
  command->add_option("-o,--output", flags->out, "the checkpoint to write")
      ->type_name(kFileValue)
      ->required();
  AddCheckpointFlags(*command, flags->run);
  command->callback([flags, &context] { context.code = RunMaterialize(*flags, context.console); });
}

}  // namespace dws::dwsctl
