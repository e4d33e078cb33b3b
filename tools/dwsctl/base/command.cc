#include "tools/dwsctl/base/command.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/dwsctl/base/printable.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kErrorColumns = 2000;  // enough for every message in practice

void Print(Console& console, const Status& error) {
  console.Error(fmt::format("dwsctl: {}\n", Printable(Message(error), kErrorColumns)));
}

bool IsSilence(const Status& error) {
  return absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error);
}

// Lists commands by the first line of their descriptions, because whole descriptions would make the
// list unreadable.
class CommandFormatter final : public CLI::Formatter {
 public:
  std::string make_subcommand(const CLI::App* command) const override {
    const std::string description = command->get_description();
    return fmt::format("  {:<{}}{}\n", command->get_name(), get_column_width() - 2,
                       description.substr(0, description.find('\n')));
  }
};

std::shared_ptr<CommandFormatter> ListFormatter() {
  auto formatter = std::make_shared<CommandFormatter>();
  formatter->column_width(18);
  return formatter;
}

std::string Footer(const std::vector<std::string>& examples) {
  std::string footer = examples.empty() ? "" : "Examples:\n";
  for (const std::string& example : examples) footer += "  " + example + "\n";
  return footer + (examples.empty() ? "" : "\n") + kExitCodeHelp;
}

}  // namespace

void AddConnectionFlags(CLI::App& command, TargetFlags& flags) {
  command
      .add_option("--run-dir", flags.run_dir, "where to look for sockets when no daemon is named")
      ->type_name(kFolderValue)
      ->capture_default_str();
  command
      .add_option_function<double>(
          "--timeout",
          [&flags](const double& seconds) {
            flags.timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
          },
          "how long to wait for an answer or a sign of life (default 5)")
      ->type_name("SECONDS")
      ->check(CLI::Validator(CLI::Range(0.001, 3600.0)).description(""));
  command.add_option("--tls-ca", flags.tls.ca, "PEM file of the CAs to trust")
      ->type_name(kFileValue)
      ->envname("DWS_TLS_CA");
  command.add_option("--tls-cert", flags.tls.cert, "PEM file of the certificate to show")
      ->type_name(kFileValue)
      ->envname("DWS_TLS_CERT");
  command.add_option("--tls-key", flags.tls.key, "PEM file of its private key")
      ->type_name(kFileValue)
      ->envname("DWS_TLS_KEY");
  command
      .add_option("--tls-server-name", flags.tls.server_name,
                  "DNS name expected in the daemon's certificate, if not that of --address")
      ->type_name("NAME")
      ->envname("DWS_TLS_SERVER_NAME");
}

void AddTargetFlags(CLI::App& command, TargetFlags& flags) {
  auto* address = command
                      .add_option("--address", flags.address,
                                  "the daemon's TCP address for operators (default: $DWS_ADDRESS)")
                      ->type_name("HOST:PORT");
  command.add_option("--socket", flags.socket, "the daemon's unix socket (default: $DWS_SOCKET)")
      ->type_name(kSocketValue)
      ->excludes(address);
  AddConnectionFlags(command, flags);
}

CLI::App* AddCommand(CLI::App& app, const char* group, const std::string& name,
                     const std::string& description, const std::vector<std::string>& examples,
                     bool& json) {
  CLI::App* command = app.add_subcommand(name, description)->group(group);
  const auto formatter = std::make_shared<CLI::Formatter>();
  formatter->column_width(30);
  command->formatter(formatter);
  command->footer(Footer(examples));
  command->add_flag("--json", json, "print JSON, as docs/dwsctl.md describes it");
  return command;
}

ExitCode Fail(Console& console, const Status& error) {
  Print(console, error);
  if (absl::IsInvalidArgument(error)) return ExitCode::kUsage;
  if (absl::IsNotFound(error) || absl::IsPermissionDenied(error) || IsSilence(error)) {
    return ExitCode::kUnreachable;
  }
  return ExitCode::kRefused;
}

ExitCode FailAnswer(Console& console, const Status& error) {
  Print(console, error);
  return IsSilence(error) ? ExitCode::kUnreachable : ExitCode::kRefused;
}

void AddAllCommands(CLI::App& app, Context& context) {
  app.formatter(ListFormatter());  // commands inherit the formatter
  AddStatusCommand(app, context);
  AddVersionsCommand(app, context);
  AddReceiversCommand(app, context);
  AddWatchCommand(app, context);
  AddOperationCommands(app, context);
  AddInspectCommand(app, context);
  AddEstimateCommand(app, context);
  AddPlanCommand(app, context);
  AddReportCommand(app, context);
  AddPackCommand(app, context);
  AddApplyCommand(app, context);
  AddSquashCommand(app, context);
  AddCompletionCommand(app, context);
}

}  // namespace dws::dwsctl
