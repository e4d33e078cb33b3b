// `dwsctl plan`: plans shapes, so that parallelisms and policies can be compared before a job runs;
// and shows the plan of a running job, as its receivers have it.
#include <fmt/format.h>

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

constexpr mesh::SharePolicy kPolicies[] = {
    mesh::SharePolicy::kShares, mesh::SharePolicy::kLeastLoaded, mesh::SharePolicy::kRoundRobin,
    mesh::SharePolicy::kBroadcast};

struct PlanFlags {
  std::string model;
  std::string trainer;
  std::string engine;
  uint32_t engines = 1;
  std::string nic = "50GB/s";
  std::string policy = "shares";
  std::string svg;
  bool once_per_host = false;
  bool json = false;
  TargetFlags connection;
  std::vector<std::string> addresses;
  std::vector<std::string> sockets;
};

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const mesh::ModelShape& model : mesh::KnownModels()) names.emplace_back(model.name);
  return names;
}

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const mesh::SharePolicy policy : kPolicies) names.emplace_back(ToString(policy));
  names.emplace_back("all");
  return names;
}

// Asks the receivers one after the other.
Result<PlanView> ViewOfJob(const PlanFlags& flags) {
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

Result<PlanView> ViewOfShapes(const PlanFlags& flags, const Bandwidth& nic) {
  const mesh::ModelShape& shape = *mesh::FindModel(flags.model);
  DWS_ASSIGN_OR_RETURN(const mesh::ParallelSizes trainer, ParseSizes("--trainer", flags.trainer));
  DWS_ASSIGN_OR_RETURN(const mesh::ParallelSizes engine, ParseSizes("--engine", flags.engine));
  const mesh::ModelTensors model = mesh::TensorsOf(shape);
  DWS_ASSIGN_OR_RETURN(const mesh::MeshLayout from, mesh::TrainerLayout(shape, model, trainer));
  DWS_ASSIGN_OR_RETURN(const mesh::MeshLayout to,
                       mesh::EngineLayout(shape, model, engine, flags.engines));
  PlanView view{.model = std::string(shape.name),
                .parameters = model.ElementCount(),
                .model_bytes = model.SizeBytes(),
                .trainer = flags.trainer,
                .engine = flags.engine,
                .engines = flags.engines,
                .nic = nic,
                .plans = {}};
  for (const mesh::SharePolicy policy : kPolicies) {
    if (flags.policy != "all" && flags.policy != ToString(policy)) continue;
    DWS_ASSIGN_OR_RETURN(const mesh::Plan plan,
                         mesh::MakePlan(model.catalogue, from, to,
                                        {.policy = policy, .once_per_host = flags.once_per_host}));
    view.plans.push_back({.policy = std::string(ToString(policy)),
                          .digest = plan.digest,
                          .regions = plan.regions.size(),
                          .traffic = mesh::TrafficOf(plan, from.rank_count, to.rank_count)});
  }
  return view;
}

Result<PlanView> MakeView(const PlanFlags& flags) {
  if (flags.model.empty()) return ViewOfJob(flags);
  const std::optional<Bandwidth> nic = ParseBandwidth(flags.nic);
  if (!nic.has_value()) {
    return InvalidArgumentError("--nic {}: expected a speed as 50GB/s or 400Gbit/s", flags.nic);
  }
  if (flags.trainer.empty() || flags.engine.empty()) {
    return InvalidArgumentError("--model needs --trainer and --engine: sizes such as tp=8,pp=2");
  }
  if (!flags.svg.empty() && flags.policy == "all") {
    return InvalidArgumentError("--svg shows one policy: name it with --policy");
  }
  return ViewOfShapes(flags, *nic);
}

ExitCode RunPlan(const PlanFlags& flags, Console& console) {
  const Result<PlanView> view = MakeView(flags);
  if (!view.ok()) return Fail(console, view.status());
  if (!flags.svg.empty()) {
    const std::string svg = FormatPlanSvg(*view, view->plans.front());
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
      app, "plan",
      "Shows how much each sender would send to each receiver.\n"
      "\n"
      "With --model: plans a transfer of full weights between the shapes of a published model, as "
      "a\n"
      "trainer and as engines cut it: bytes by rank, balance, regions, staging, and time at a "
      "link's\n"
      "speed; contacts no daemon. Otherwise asks the receivers of a running job, by default those "
      "of\n"
      "the run directory, what their engines take from which trainer rank.",
      {"dwsctl plan --address 10.0.0.5:7710 --address 10.0.0.6:7710 --json",
       "dwsctl plan --model kimi-k2 --trainer tp=8,pp=8,ep=32,dp=4 --engine tp=32,ep=32 --engines "
       "8",
       "dwsctl plan --model qwen3-8b --trainer fsdp=16 --engine tp=2 --engines 4 --policy all",
       "dwsctl plan --model glm-4.5 --trainer tp=8,dp=4,ep=32 --engine tp=8,ep=8 --svg plan.svg"},
      flags->json);
  const auto choice = [](const std::vector<std::string>& names) {
    return CLI::Validator(CLI::IsMember(names)).description("");
  };
  command
      ->add_option("--model", flags->model, "a published model, of those that docs/dwsctl.md lists")
      ->type_name("NAME")
      ->check(choice(ModelNames()));
  command
      ->add_option("--trainer", flags->trainer, "sizes of tp, pp, dp, ep, etp; or of fsdp and dp")
      ->type_name("SIZES")
      ->needs("--model");
  command->add_option("--engine", flags->engine, "sizes of tp, dp, ep, etp of one engine")
      ->type_name("SIZES")
      ->needs("--model");
  command->add_option("--engines", flags->engines, "how many engines there are")
      ->type_name("N")
      ->needs("--model")
      ->capture_default_str();
  command->add_option("--nic", flags->nic, "speed of each rank's link, in each direction")
      ->type_name("SPEED")
      ->capture_default_str()
      ->needs("--model");
  command
      ->add_option(
          "--policy", flags->policy,
          "which replica sends: shares, least-loaded, round-robin, broadcast; all compares")
      ->type_name("POLICY")
      ->capture_default_str()
      ->needs("--model")
      ->check(choice(PolicyNames()));
  command
      ->add_flag("--once-per-host", flags->once_per_host,
                 "ranks of one engine host take what they share once, and copy it")
      ->needs("--model");
  command->add_option("--svg", flags->svg, "write a heat map: who sends how much to whom")
      ->type_name(kFileValue);
  command->add_option("--address", flags->addresses, "a receiver's TCP address; may be repeated")
      ->type_name("HOST:PORT")
      ->allow_extra_args(false)
      ->excludes("--model");
  command->add_option("--socket", flags->sockets, "a receiver's unix socket; may be repeated")
      ->type_name(kSocketValue)
      ->allow_extra_args(false)
      ->excludes("--model");
  AddConnectionFlags(*command, flags->connection);
  command->callback([flags, &context] { context.code = RunPlan(*flags, context.console); });
}

}  // namespace dws::dwsctl
