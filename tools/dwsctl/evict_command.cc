#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string_view>

#include "common/base/utf8.h"
#include "tools/dwsctl/operation.h"

namespace dws::dwsctl {
namespace {

struct EvictFlags {
  OperationFlags operation;
  uint32_t member = 0;
  std::string reason = "an operator's decision";
};

// CLI11's way: what is wrong, or nothing.
std::string NotUtf8(const std::string& text) {
  for (std::string_view rest = text; !rest.empty();) {
    const size_t size_bytes = FirstUtf8Character(rest).size_bytes;
    if (size_bytes == 0) return "is not UTF-8";
    rest.remove_prefix(size_bytes);
  }
  return "";
}

ExitCode RunEvict(const EvictFlags& flags, Console& console) {
  v1::EvictRequest request;
  request.set_member_index(flags.member);
  request.set_reason(flags.reason);
  const OperationOutcome outcome = RunOperation(
      flags.operation, request, "`dwsctl status` says whether the group has ended", console);
  if (outcome.code != ExitCode::kOk || flags.operation.json) return outcome.code;
  console.Out(fmt::format(
      "{}: member {} is evicted, the engine of its commit group has ended; restart this receiver, "
      "then the others and the engine\n",
      outcome.Name(), flags.member));
  return ExitCode::kOk;
}

}  // namespace

void AddEvictCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<EvictFlags>();
  CLI::App* command = AddCommand(
      app, "evict",
      "Ends the engine of a commit group that waits for a member in vain.\n"
      "\n"
      "Asks the receiver that leads the group. The engine's ranks need each other: when a host "
      "will\n"
      "not come back, all members end their registrations, so that no rank waits for ever or goes\n"
      "on with old weights. Afterwards restart the group's receivers, the leader first, and the "
      "engine.",
      {"dwsctl evict --member 2 --reason 'host r7 has burnt' --address r5:7710"},
      flags->operation.json);
  command->add_option("--member", flags->member, "its --group-index; 0 is the leader itself")
      ->required();
  command->add_option("--reason", flags->reason, "for the logs of all members")
      ->check(&NotUtf8)
      ->capture_default_str();
  AddTargetFlags(*command, flags->operation.target);
  command->callback([flags, &context] { context.code = RunEvict(*flags, context.console); });
}

}  // namespace dws::dwsctl
