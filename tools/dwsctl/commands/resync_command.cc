#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/dwsctl/client/operation.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

// The receiver continues after a hang-up, so ^C must not read like a cancelled resync.
constexpr char kAfterHangup[] = "the resync continues, `dwsctl watch` shows it";

struct ResyncFlags {
  OperationFlags operation;
  bool full = false;
};

ExitCode RunResync(const ResyncFlags& flags, Console& console) {
  v1::ResyncRequest request;
  request.set_full(flags.full);
  const OperationOutcome outcome = RunOperation(flags.operation, request, kAfterHangup, console);
  if (outcome.code != ExitCode::kOk || flags.operation.json) return outcome.code;
  if (!outcome.last.finished()) {
    console.Out(fmt::format("{}: started; {}\n", outcome.Name(), kAfterHangup));
  } else {
    console.Out(fmt::format("{}: in step with the senders at version {}, {} checked\n",
                            outcome.Name(), FormatVersion(outcome.last.version()),
                            FormatBytes(outcome.last.done_bytes())));
  }
  return ExitCode::kOk;
}

}  // namespace

void AddResyncCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<ResyncFlags>();
  CLI::App* command = AddCommand(
      app, kOperateGroup, "resync",
      "Makes a receiver prove every weight again.\n"
      "\n"
      "It assumes nothing of the engine's live weights, recomputes all digests and takes in full\n"
      "what differs from the newest version; with --full every tensor, whatever its digest.\n"
      "It continues when dwsctl hangs up (^C, --no-wait).",
      {"dwsctl resync --socket /run/dws/receiver.sock", "dwsctl resync --full --no-wait"},
      flags->operation.json);
  command->add_flag("--full", flags->full, "take every tensor in full");
  command->add_flag("--no-wait", flags->operation.no_wait, "return once it has begun");
  AddTargetFlags(*command, flags->operation.target);
  command->callback([flags, &context] { context.code = RunResync(*flags, context.console); });
}

}  // namespace dws::dwsctl
