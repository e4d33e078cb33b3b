#include "tools/dwsctl/status_command.h"

#include <google/protobuf/util/json_util.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "common/base/check.h"
#include "tools/dwsctl/admin_client.h"
#include "tools/dwsctl/daemon_target.h"
#include "tools/dwsctl/status_text.h"

namespace dws::dwsctl {
namespace {

constexpr char kDescription[] =
    "Shows what a daemon says of itself: its stream, versions, peers and whether it is ready.\n"
    "--json prints the dws.v1.StatusReply of proto/admin.proto in protobuf's JSON mapping: field\n"
    "names as in the file, unset fields included, 64-bit integers as strings.";

std::string ToJson(const v1::StatusReply& status) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  DWS_CHECK(google::protobuf::util::MessageToJsonString(status, &json, options).ok());
  return json;
}

ExitCode CodeOf(const Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
      return ExitCode::kUsage;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kUnreachable;
    default:
      return ExitCode::kRefused;
  }
}

Outcome Failure(ExitCode code, const Status& error) {
  return {.code = code, .out = "", .error = fmt::format("dwsctl: {}\n", Message(error))};
}

}  // namespace

Outcome RunStatus(const StatusFlags& flags) {
  const auto target = FindDaemon(flags.target);
  if (!target.ok()) return Failure(CodeOf(target.status()), target.status());
  const auto status = FetchStatus(*target, flags.target.timeout);
  if (!status.ok()) {
    // What the daemon calls invalid or not found is its answer, not a mistake on this command line.
    const ExitCode code = CodeOf(status.status());
    const bool silent =
        absl::IsUnavailable(status.status()) || absl::IsDeadlineExceeded(status.status());
    return Failure(silent ? code : ExitCode::kRefused, status.status());
  }
  return {.code = status->ready() ? ExitCode::kOk : ExitCode::kNotReady,
          .out = flags.json ? ToJson(*status) : FormatStatus(*status),
          .error = ""};
}

void AddStatusCommand(CLI::App& app, Outcome& outcome) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command = app.add_subcommand("status", kDescription);
  command->footer(kExitCodeHelp);
  AddTargetFlags(*command, flags->target);
  command->add_flag("--json", flags->json, "print JSON instead of text");
  command->callback([flags, &outcome] { outcome = RunStatus(*flags); });
}

}  // namespace dws::dwsctl
