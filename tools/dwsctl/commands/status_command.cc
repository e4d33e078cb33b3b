#include <CLI/CLI.hpp>

#include <memory>

#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/base/json.h"
#include "tools/dwsctl/client/admin_client.h"
#include "tools/dwsctl/text/status_text.h"

namespace dws::dwsctl {
namespace {

struct StatusFlags {
  TargetFlags target;
  bool json = false;
};

ExitCode RunStatus(const StatusFlags& flags, Console& console) {
  auto client = ConnectDaemon(flags.target);
  if (!client.ok()) return Fail(console, client.status());
  const auto status = client->FetchStatus();
  if (!status.ok()) return FailAnswer(console, status.status());
  console.Out(flags.json ? ToJsonText(*status) : FormatStatus(*status, console.columns()));
  // The exit code tells scripts whether the daemon is ready, without parsing the output.
  return status->ready() ? ExitCode::kOk : ExitCode::kNotReady;
}

}  // namespace

void AddStatusCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command = AddCommand(app, kLookGroup, "status",
                                 "Shows the state that a daemon reports.\n"
                                 "\n"
                                 "Its stream, versions, peers and memory, how it was built, and "
                                 "whether it is ready; if not, why.",
                                 {"dwsctl status", "dwsctl status --socket /run/dws/receiver.sock",
                                  "dwsctl status --address 10.0.0.5:7710 --json | jq .ready"},
                                 flags->json);
  AddTargetFlags(*command, flags->target);
  command->callback([flags, &context] { context.code = RunStatus(*flags, context.console); });
}

}  // namespace dws::dwsctl
