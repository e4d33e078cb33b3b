// `dwsctl report`: collects what one sends to a developer, without secrets.
#include <CLI/CLI.hpp>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/service/build_version.h"
#include "common/service/http/http_caller.h"
#include "common/service/listen_address.h"
#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/base/json.h"
#include "tools/dwsctl/client/admin_client.h"
#include "tools/dwsctl/client/daemon_target.h"
#include "tools/dwsctl/report/daemon_process.h"
#include "tools/dwsctl/report/machine.h"
#include "tools/dwsctl/report/report.h"
#include "tools/dwsctl/report/settings.h"
#include "tools/dwsctl/text/status_text.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kStatusColumns = 120;

struct ReportFlags {
  TargetFlags target;
  std::string output;
  bool json = false;
};

Result<std::string> TextOf(const Result<v1::StatusReply>& status) {
  if (!status.ok()) return status.status();
  return FormatStatus(*status, kStatusColumns);
}

template <typename Message>
Result<std::string> JsonOf(const Result<Message>& message) {
  if (!message.ok()) return message.status();
  return ToJsonText(*message);
}

void AddAnswers(const ReportFlags& flags, const DaemonTarget& target, Report& report) {
  auto client = AdminClient::Create(target, flags.target.tls, flags.target.timeout);
  if (!client.ok()) return report.Add("status.txt", client.status());
  const auto status = client->FetchStatus();
  report.Add("status.txt", TextOf(status));
  report.Add("status.json", JsonOf(status));
  report.Add("plan.json", JsonOf(client->FetchPlan()));
}

// Its files for TLS, those of `tls` first.
HttpCaller::Options CallerOptions(const TlsFlags& tls, const DaemonSettings& settings) {
  const bool own = !tls.ca.empty();
  return {
      .ca_file = own ? tls.ca : settings.ValueOf("tls-ca"),
      .cert_file = own ? tls.cert : settings.ValueOf("tls-cert"),
      .key_file = own ? tls.key : settings.ValueOf("tls-key"),
      // The same variable names a receiver's senders to it.
      .server_name = tls.server_name == settings.ValueOf("tls-server-name") ? "" : tls.server_name,
      .answer_bytes_max = kPartBytesMax};
}

// /metrics at the address that the daemon was given as --http, as one of its job: with the
// command's certificate, or else with the daemon's.
Result<std::string> Metrics(const DaemonSettings& settings, const ReportFlags& flags) {
  const std::string http = settings.ValueOf("http");
  if (http.empty()) return FailedPreconditionError("the daemon has no --http");
  DWS_ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(http));
  const HttpCaller::Options options = CallerOptions(flags.target.tls, settings);
  const bool secure = !address.IsLoopback() && !settings.ValueOf("tls-ca").empty();
  if (address.host == "0.0.0.0") address.host = "127.0.0.1";
  if (address.host == "::") address.host = "::1";
  DWS_ASSIGN_OR_RETURN(
      const HttpUrl url,
      ParseHttpUrl(fmt::format("{}://{}", secure ? "https" : "http", address.ToString())));
  DWS_ASSIGN_OR_RETURN(const auto caller, HttpCaller::Create(url, options));
  const HttpOutcome outcome = caller->Call({.target = "/metrics"}, flags.target.timeout);
  DWS_RETURN_IF_ERROR(outcome.answer.status());
  if (outcome.answer->code != 200) {
    return UnavailableError("{}/metrics answered with {}", url.ToString(), outcome.answer->code);
  }
  return outcome.answer->body;
}

// Where the daemon needs room.
std::vector<std::string> Places(const DaemonSettings* settings, const std::string& socket) {
  std::vector<std::string> places = {"/", "/dev/shm", "/tmp"};
  if (!socket.empty()) places.push_back(socket.substr(0, socket.rfind('/') + 1) + ".");
  if (settings == nullptr) return places;
  for (const char* const name :
       {"state-dir", "shared-dir", "slime-dir", "checkpoint", "host-share"}) {
    const std::string value = settings->ValueOf(name);
    if (value.starts_with('/') && value.find(',') == std::string::npos) places.push_back(value);
  }
  return places;
}

Report Collect(const ReportFlags& flags, const DaemonTarget& target) {
  Report report;
  report.Add("version.txt", VersionText("dwsctl") + "\n");
  AddAnswers(flags, target, report);
  const std::string socket = target.local ? target.text : "";
  const Result<pid_t> pid = target.local ? ListenerOf(socket)
                                         : FailedPreconditionError(
                                               "{} is reached over TCP: run dwsctl report with "
                                               "--socket on the daemon's own machine",
                                               target.text);
  std::optional<DaemonSettings> settings;
  if (pid.ok()) {
    Result<DaemonSettings> read = ReadSettings(*pid, report.redactor());
    if (read.ok()) settings.emplace(*std::move(read));
    report.Add("settings.txt", read.ok() ? Result<std::string>(settings->text()) : read.status());
    AddProcess(*pid, report);
  } else {
    for (const char* const name : {"settings.txt", "process.txt", "log.txt"}) {
      report.Add(name, pid.status());
    }
  }
  report.Add("metrics.txt", settings.has_value()
                                ? Metrics(*settings, flags)
                                : FailedPreconditionError("the address is in its settings, which "
                                                          "cannot be read"));
  // What this machine has says nothing about a daemon on another one.
  if (target.local) AddMachine(Places(settings ? &*settings : nullptr, socket), report);
  return report;
}

std::string DefaultPath(std::time_t now) {
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts);
  return fmt::format("dws-report-{}.tar.gz", text);
}

ExitCode RunReport(const ReportFlags& flags, Console& console) {
  const auto target = FindDaemon(flags.target);
  if (!target.ok()) return Fail(console, target.status());
  const std::time_t now = std::time(nullptr);
  const std::string path = flags.output.empty() ? DefaultPath(now) : flags.output;
  const Report report = Collect(flags, *target);
  const Status written = WriteReport(report.Cleaned(), path, now);
  if (!written.ok()) {
    static_cast<void>(Fail(console, Annotate(written, "--output")));
    return ExitCode::kFile;
  }
  console.Out(flags.json ? report.SummaryJson(path)
                         : fmt::format("{}\nwritten to {}: look through it before you send it\n",
                                       report.Summary(), path));
  return ExitCode::kOk;
}

}  // namespace

void AddReportCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* command = AddCommand(
      app, kLookGroup, "report",
      "Collects what a developer needs to see of a daemon, without secrets.\n"
      "\n"
      "Status, plan, metrics, settings, the last lines of the log, and the machine: kernel,\n"
      "processor, memory, disks, GPUs. Commands, credentials in URLs, tokens and keys are left "
      "out.\n"
      "Run it where the daemon runs, as root or as its user. What is missing is listed with why.",
      {"dwsctl report", "dwsctl report --socket /run/dws/receiver-rollout-0.sock",
       "dwsctl report --output /tmp/report"},
      flags->json);
  command
      ->add_option("-o,--output", flags->output,
                   "a new folder, or a .tar.gz (default: dws-report-TIME.tar.gz here)")
      ->type_name(kFileValue);
  AddTargetFlags(*command, flags->target);
  command->callback([flags, &context] { context.code = RunReport(*flags, context.console); });
}

}  // namespace dws::dwsctl
