// `dwsctl plan`: shows the plan of a running job, as its receivers have it.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/model/limits.h"
#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/client/admin_client.h"
#include "tools/dwsctl/client/daemon_target.h"
#include "tools/dwsctl/plan/plan_view.h"

namespace dws::dwsctl {
namespace {

struct PlanFlags {
  std::string svg;
  bool json = false;
  TargetFlags connection;
  std::vector<std::string> addresses;
  std::vector<std::string> sockets;
};

// Asks the receivers one after the other.
Result<PlanView> MakeView(const PlanFlags& flags) {
  DWS_ASSIGN_OR_RETURN(const std::vector<DaemonTarget> targets,
                       FindDaemons(flags.addresses, flags.sockets, flags.connection.run_dir));
  if (targets.size() > limits::kReceiversMax) {
    return InvalidArgumentError("{} receivers, at most {} can be asked", targets.size(),
                                limits::kReceiversMax);
  }
  const bool all_found = flags.addresses.empty() && flags.sockets.empty();
  std::vector<v1::PlanReply> replies;
  Status refused;
  for (const DaemonTarget& target : targets) {
    DWS_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Create(target, flags.connection.tls,
                                                                 flags.connection.timeout));
    Result<v1::PlanReply> reply = client.FetchPlan();
    if (reply.ok()) {
      replies.push_back(*std::move(reply));
    } else if (all_found && absl::IsFailedPrecondition(reply.status())) {
      refused = reply.status();  // a sender in the run directory, or a receiver without an engine
    } else {
      return reply.status();
    }
  }
  if (replies.empty() && !refused.ok()) return refused;
  return PlanOfJob(replies);
}

ExitCode RunPlan(const PlanFlags& flags, Console& console) {
  const Result<PlanView> view = MakeView(flags);
  if (!view.ok()) return Fail(console, view.status());
  if (!flags.svg.empty()) {
    const std::string svg = FormatPlanSvg(*view);
    const Status written = PosixFileSystem().ReplaceFile(flags.svg, AsBytes(svg));
    if (!written.ok()) {
      static_cast<void>(Fail(console, Annotate(written, "--svg")));
      return ExitCode::kFile;
    }
  }
  console.Out(flags.json ? FormatPlanJson(*view) : FormatPlan(*view));
  return ExitCode::kOk;
}

}  // namespace

void AddPlanCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = AddCommand(
      app, kLookGroup, "plan",
      "Shows how much each sender would send to each receiver.\n"
      "\n"
      "Asks the receivers of a running job, by default those of the run directory, what their "
      "engines\n"
      "take from which trainer rank, in full and as the last delta, and where it waits for its "
      "commit.",
      {"dwsctl plan --socket /run/dws/receiver.sock",
       "dwsctl plan --address 10.0.0.5:7710 --address 10.0.0.6:7710 --json",
       "dwsctl plan --svg plan.svg"},
      flags->json);
  command->add_option("--svg", flags->svg, "write a heat map: who sends how much to whom")
      ->type_name(kFileValue);
  command->add_option("--address", flags->addresses, "a receiver's TCP address; may be repeated")
      ->type_name("HOST:PORT")
      ->allow_extra_args(false);
  command->add_option("--socket", flags->sockets, "a receiver's unix socket; may be repeated")
      ->type_name(kSocketValue)
      ->allow_extra_args(false);
  AddConnectionFlags(*command, flags->connection);
  command->callback([flags, &context] { context.code = RunPlan(*flags, context.console); });
}

}  // namespace dws::dwsctl
