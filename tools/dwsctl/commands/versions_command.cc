// `dwsctl versions` and `dwsctl receivers`: each shows one table of a daemon's status. They use the
// Status call, because the daemon has no other call for it.
#include <CLI/CLI.hpp>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/base/json.h"
#include "tools/dwsctl/client/admin_client.h"
#include "tools/dwsctl/text/status_text.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

using Json = nlohmann::ordered_json;

struct TableFlags {
  TargetFlags target;
  bool json = false;
  size_t count = std::numeric_limits<size_t>::max();  // how many versions are shown
};

template <typename Messages>
Json ToArray(const Messages& messages) {
  Json array = Json::array();
  for (const auto& message : messages) array.push_back(Json::parse(ToJsonLine(message)));
  return array;
}

std::string Number(uint64_t number) { return fmt::format("{}", number); }

Json VersionsJson(const v1::StatusReply& status, size_t count) {
  Json json = {{"daemon", status.daemon()}, {"job_id", status.job_id()}};
  if (status.has_sender()) {
    const v1::SenderStatus& sender = status.sender();
    json["newest_version"] = Number(sender.newest_version());
    Json versions = ToArray(sender.versions());
    if (versions.size() > count) {
      versions.erase(versions.begin(), versions.end() - static_cast<std::ptrdiff_t>(count));
    }
    json["versions"] = std::move(versions);
  } else {
    const v1::ReceiverStatus& receiver = status.receiver();
    json["newest_version"] = Number(receiver.newest_version());
    json["committed_version"] = Number(receiver.committed_version());
    json["target_version"] = Number(receiver.target_version());
    json["stage"] = receiver.stage();
    json["last_commit"] = Json::parse(ToJsonLine(receiver.last_commit()));
    json["senders"] = ToArray(receiver.senders());
  }
  return json;
}

std::string VersionsText(const v1::StatusReply& status, size_t count, size_t columns) {
  if (status.has_sender()) {
    if (status.sender().versions().empty()) return "  no version is retained\n";
    return FormatVersionTable(status.sender(), count);
  }
  const v1::ReceiverStatus& receiver = status.receiver();
  return FormatKeyLine("committed", FormatVersion(receiver.committed_version()), columns) +
         FormatKeyLine("newest", FormatVersion(receiver.newest_version()), columns) +
         FormatKeyLine("target", FormatTarget(receiver), columns) +
         FormatLastCommit(receiver, columns) + "\n" + FormatSenderTable(receiver, columns);
}

ExitCode RunVersions(const TableFlags& flags, Console& console) {
  auto client = ConnectDaemon(flags.target);
  if (!client.ok()) return Fail(console, client.status());
  const auto status = client->FetchStatus();
  if (!status.ok()) return FailAnswer(console, status.status());
  console.Out(flags.json ? VersionsJson(*status, flags.count).dump(2) + "\n"
                         : VersionsText(*status, flags.count, console.columns()));
  return ExitCode::kOk;
}

ExitCode RunReceivers(const TableFlags& flags, Console& console) {
  auto client = ConnectDaemon(flags.target);
  if (!client.ok()) return Fail(console, client.status());
  const auto status = client->FetchStatus();
  if (!status.ok()) return FailAnswer(console, status.status());
  if (!status->has_sender()) {
    return FailAnswer(console,
                      FailedPreconditionError("{} is a {}: it has no receivers; ask a dws-sender",
                                              client->target().text, status->daemon()));
  }
  const Json json = {{"daemon", status->daemon()},
                     {"job_id", status->job_id()},
                     {"newest_version", Number(status->sender().newest_version())},
                     {"receivers_present", status->sender().receivers_present()},
                     {"receivers_absent", status->sender().receivers_absent()},
                     {"receivers", ToArray(status->sender().receivers())}};
  console.Out(flags.json ? json.dump(2) + "\n"
                         : FormatReceiverTable(status->sender(), console.columns()));
  return ExitCode::kOk;
}

}  // namespace

void AddVersionsCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<TableFlags>();
  CLI::App* command = AddCommand(
      app, kLookGroup, "versions",
      "Shows the versions that a daemon has.\n"
      "\n"
      "Sender: those it retains, newest first. Receiver: the one that is committed, the one in\n"
      "flight, and the newest of each sender.",
      {"dwsctl versions --socket /run/dws/sender-0.sock", "dwsctl versions --count 5"},
      flags->json);
  command->add_option("--count", flags->count, "how many versions to show (default all)")
      ->type_name("N")
      ->check(CLI::Validator(CLI::PositiveNumber).description(""));
  AddTargetFlags(*command, flags->target);
  command->callback([flags, &context] { context.code = RunVersions(*flags, context.console); });
}

void AddReceiversCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<TableFlags>();
  CLI::App* command = AddCommand(
      app, kLookGroup, "receivers",
      "Shows the receivers of a sender.\n"
      "\n"
      "Present or not, what they committed and staged, how many versions they lag, bytes and "
      "pause\n"
      "of their last commit, what they refused and why.",
      {"dwsctl receivers --socket /run/dws/sender-0.sock",
       "dwsctl receivers --json | jq -r '.receivers[] | select(.present | not) | .receiver_id'"},
      flags->json);
  AddTargetFlags(*command, flags->target);
  command->callback([flags, &context] { context.code = RunReceivers(*flags, context.console); });
}

}  // namespace dws::dwsctl
