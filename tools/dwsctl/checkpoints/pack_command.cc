#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "common/base/file_system.h"
#include "tools/checkpoint/pack.h"
#include "tools/dwsctl/checkpoints/checkpoint_run.h"
#include "tools/dwsctl/checkpoints/packed_text.h"

namespace dws::dwsctl {
namespace {

struct PackFlags {
  CheckpointFlags run;
  std::string a;
  std::string b;
  std::string out;
  std::string profile = "fast";
  uint64_t base_version = 1;
  uint64_t version = 2;
};

ExitCode RunPack(const PackFlags& flags, Console& console) {
  const auto run = CheckpointRun::Start(flags.run, console);
  if (!run.ok()) return FailCheckpoint(console, run.status());
  // A checkpoint that a receiver has left half changed must not become a delta.
  const auto a = OpenSettled(flags.a);
  if (!a.ok()) return FailCheckpoint(console, a.status());
  const auto b = OpenSettled(flags.b);
  if (!b.ok()) return FailCheckpoint(console, b.status());
  PosixFileSystem files;
  const checkpoint::PackOptions options{.base_version = flags.base_version,
                                        .version = flags.version,
                                        .profile = ProfileNamed(flags.profile)};
  const auto packed =
      checkpoint::Pack(files, *a, *b, options, flags.out, (*run)->pool(), (*run)->progress());
  (*run)->Clear();
  if (!packed.ok()) return FailCheckpoint(console, packed.status());
  console.Out(FormatPacked(*packed, flags.out, flags.run.json));
  return ExitCode::kOk;
}

}  // namespace

void AddPackCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<PackFlags>();
  CLI::App* command = AddCommand(
      app, kFilesGroup, "pack",
      "Makes the delta object that leads from one checkpoint to another.\n"
      "\n"
      "Reads two safetensors checkpoints of the same tensors, writes one delta object. apply "
      "reads\n"
      "it, inspect shows it. Exits with 5 when the tensors are not the same.",
      {"dwsctl pack step_100/ step_101/ -o step_101.dws",
       "dwsctl pack --profile=wan --base-version=100 --version=101 step_100/ step_101/ -o 101.dws"},
      flags->run.json);
  command->add_option("A", flags->a, "the checkpoint before: a file or a folder")
      ->type_name(kFileValue)
      ->required();
  command->add_option("B", flags->b, "the checkpoint after")->type_name(kFileValue)->required();
  command->add_option("-o,--output", flags->out, "the delta object to write")
      ->type_name(kFileValue)
      ->required();
  AddProfileFlag(*command, flags->profile);
  command->add_option("--base-version", flags->base_version, "the version that A is")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--version", flags->version, "the version that B is, above the other")
      ->type_name("N")
      ->capture_default_str();
  AddCheckpointFlags(*command, flags->run);
  command->callback([flags, &context] { context.code = RunPack(*flags, context.console); });
}

}  // namespace dws::dwsctl
