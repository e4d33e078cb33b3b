#include <CLI/CLI.hpp>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "tools/checkpoint/pack.h"
#include "tools/checkpoint/parts/output_check.h"
#include "tools/dwsctl/base/layout_file.h"
#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/checkpoints/packed_text.h"

namespace dws::dwsctl {
namespace {

struct SquashFlags {
  CheckpointFlags run;
  std::vector<std::string> deltas;
  std::string base;
  std::string layout;
  std::string out;
  std::string profile = "fast";
};

Result<checkpoint::PackedObject> Squash(const SquashFlags& flags, CheckpointRun& run) {
  PosixFileSystem files;
  if (!flags.base.empty()) {
    DWS_ASSIGN_OR_RETURN(const safetensors::Checkpoint base, OpenSettled(flags.base));
    return checkpoint::SquashOver(files, base, flags.deltas, ProfileNamed(flags.profile), flags.out,
                                  run.pool(), run.progress());
  }
  // SquashAlone does not know the layout's file, so check here that the output does not replace it.
  DWS_RETURN_IF_ERROR(checkpoint::CheckObjectOutput(flags.out, std::span(&flags.layout, 1)));
  DWS_ASSIGN_OR_RETURN(const RankLayout layout, ReadLayoutFile(flags.layout));
  return checkpoint::SquashAlone(files, layout, flags.deltas, flags.out, run.progress());
}

ExitCode RunSquash(const SquashFlags& flags, Console& console) {
  if (flags.base.empty() == flags.layout.empty()) {
    return Fail(console, InvalidArgumentError(
                             "squash: deltas do not contain their layout; give --base CHECKPOINT "
                             "(which they begin with) or --layout FILE"));
  }
  if (flags.base.empty() && flags.profile != "fast") {
    return Fail(console, InvalidArgumentError("squash: --profile {} needs the weights: give --base",
                                              flags.profile));
  }
  const auto run = CheckpointRun::Start(flags.run, console);
  if (!run.ok()) return FailCheckpoint(console, run.status());
  const auto packed = Squash(flags, **run);
  (*run)->Clear();
  if (!packed.ok()) return FailCheckpoint(console, packed.status());
  console.Out(FormatPacked(*packed, flags.out, flags.run.json));
  return ExitCode::kOk;
}

}  // namespace

void AddSquashCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<SquashFlags>();
  CLI::App* command = AddCommand(
      app, kFilesGroup, "squash",
      "Makes one delta object of several that follow each other.\n"
      "\n"
      "With --base, the checkpoint they begin with: any profile, and every step is proved.\n"
      "With --layout, from their steps alone: no weights are read, and objects of the profiles\n"
      "wan and direct do not compose. Exits with 5 when a delta does not follow the one before.",
      {"dwsctl squash --base step_100/ 101.dws 102.dws 103.dws -o 100_to_103.dws",
       "dwsctl squash --layout layout.json 101.dws 102.dws -o 100_to_102.dws"},
      flags->run.json);
  command->add_option("DELTA", flags->deltas, "delta objects, in order")
      ->type_name(kFileValue)
      ->required();
  command->add_option("-o,--output", flags->out, "the delta object to write")
      ->type_name(kFileValue)
      ->required();
  auto* base = command->add_option("--base", flags->base, "the checkpoint that the first changes")
                   ->type_name(kFileValue);
  command->add_option("--layout", flags->layout, "the rank's layout (dws.v1.RankLayout in JSON)")
      ->type_name(kFileValue)
      ->excludes(base);
  AddProfileFlag(*command, flags->profile);
  AddCheckpointFlags(*command, flags->run);
  command->callback([flags, &context] { context.code = RunSquash(*flags, context.console); });
}

}  // namespace dws::dwsctl
