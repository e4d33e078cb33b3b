// The daemon reports what it did; this command decides nothing.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/client/operation.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

ExitCode RunCommit(const OperationFlags& flags, Console& console) {
  const OperationOutcome outcome =
      RunOperation(flags, v1::AdminBoundaryRequest(),
                   "the boundary is taken back, unless a commit has begun", console);
  if (outcome.code != ExitCode::kOk || flags.json) return outcome.code;
  console.Out(fmt::format("{}: {}, the engine has version {}\n", outcome.Name(),
                          Printable(outcome.last.step(), 200),
                          FormatVersion(outcome.last.version())));
  return ExitCode::kOk;
}

}  // namespace

void AddCommitCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<OperationFlags>();
  CLI::App* command = AddCommand(
      app, kOperateGroup, "commit",
      "Commits the version that a receiver holds back: its engine is between two batches.\n"
      "\n"
      "Ends when the version that --commit-policy holds back is committed, at once if none is;\n"
      "^C takes it back. For engines that cannot say it themselves: what drives them calls this\n"
      "between two batches. Of a commit group: its leader.",
      {"dwsctl commit --socket /run/dws/receiver-rollout-0.sock"}, flags->json);
  command->alias("boundary");  // the older name
  AddTargetFlags(*command, flags->target);
  command->callback([flags, &context] { context.code = RunCommit(*flags, context.console); });
}

}  // namespace dws::dwsctl
