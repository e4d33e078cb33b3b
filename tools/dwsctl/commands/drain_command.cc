#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/dwsctl/client/operation.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

struct DrainFlags {
  OperationFlags operation;
  bool undo = false;
};

std::string ResultText(const OperationOutcome& outcome, bool undo) {
  const std::string version = FormatVersion(outcome.last.version());
  if (undo) return fmt::format("{}: the drain has ended\n", outcome.Name());
  if (!outcome.last.finished()) {
    return fmt::format("{}: draining; `dwsctl status` says when it is done\n", outcome.Name());
  }
  if (outcome.daemon.has_sender()) {
    return fmt::format(
        "{}: drained, every present receiver has version {}; it takes no versions until `dwsctl "
        "undrain`\n",
        outcome.Name(), version);
  }
  return fmt::format(
      "{}: drained at version {}, nothing is in flight; it commits nothing until `dwsctl "
      "undrain`\n",
      outcome.Name(), version);
}

// The drain continues after a hang-up, so every text says how to end it: a forgotten drain stops
// all new versions.
ExitCode RunDrain(const DrainFlags& flags, Console& console) {
  v1::DrainRequest request;
  request.set_undo(flags.undo);
  const std::string after_hangup =
      flags.undo ? "`dwsctl status` says whether it is still draining"
                 : "the daemon continues draining and stays drained until `dwsctl undrain`";
  const OperationOutcome outcome = RunOperation(flags.operation, request, after_hangup, console);
  if (outcome.code != ExitCode::kOk || flags.operation.json) return outcome.code;
  console.Out(ResultText(outcome, flags.undo));
  return ExitCode::kOk;
}

}  // namespace

void AddDrainCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<DrainFlags>();
  CLI::App* command =
      AddCommand(app, kOperateGroup, "drain",
                 "Finishes the work in flight, and begins nothing new.\n"
                 "\n"
                 "Receiver: ends the commit in flight and begins no other. Sender: "
                 "takes no more versions, and\n"
                 "waits until every present receiver has committed the newest. "
                 "Before an upgrade or a reboot.\n"
                 "Stays in force until `dwsctl undrain` or the daemon's end; hanging up (^C, "
                 "--no-wait) does not undo it.",
                 {"dwsctl drain --socket /run/dws/receiver.sock", "dwsctl drain --no-wait"},
                 flags->operation.json);
  command->add_flag("--undo", flags->undo, "the same as `dwsctl undrain`");
  command->add_flag("--no-wait", flags->operation.no_wait, "return once it has begun");
  AddTargetFlags(*command, flags->operation.target);
  command->callback([flags, &context] { context.code = RunDrain(*flags, context.console); });
}

void AddUndrainCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<DrainFlags>(DrainFlags{.operation = {}, .undo = true});
  CLI::App* command = AddCommand(
      app, kOperateGroup, "undrain", "Ends a drain: versions are taken, or committed, again.",
      {"dwsctl undrain --socket /run/dws/receiver.sock"}, flags->operation.json);
  AddTargetFlags(*command, flags->operation.target);
  command->callback([flags, &context] { context.code = RunDrain(*flags, context.console); });
}

}  // namespace dws::dwsctl
