#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/client/operation.h"

namespace dws::dwsctl {
namespace {

struct EvictFlags {
  OperationFlags operation;
  std::optional<uint32_t> member;
  std::string receiver;
  std::string reason = "an operator's decision";
};

// A CLI11 validator: returns what is wrong, or "".
std::string NotUtf8(const std::string& text) {
  for (std::string_view rest = text; !rest.empty();) {
    const size_t size_bytes = FirstUtf8Character(rest).size_bytes;
    if (size_bytes == 0) return "is not UTF-8";
    rest.remove_prefix(size_bytes);
  }
  return "";
}

ExitCode RunEvict(const EvictFlags& flags, Console& console) {
  if (!flags.member.has_value() && flags.receiver.empty()) {
    console.Error(
        "dwsctl: --member or --receiver is needed: it names the peer that will not come back\n");
    return ExitCode::kUsage;
  }
  v1::EvictRequest request;
  // With --receiver, use a member index that no group has, so that no leader treats the request as
  // its own.
  request.set_member_index(flags.member.value_or(std::numeric_limits<uint32_t>::max()));
  request.set_receiver_id(flags.receiver);
  request.set_reason(flags.reason);
  const OperationOutcome outcome =
      RunOperation(flags.operation, request,
                   flags.member.has_value() ? "`dwsctl status` says whether the group has ended"
                                            : "`dwsctl receivers` says whether it is forgotten",
                   console);
  if (outcome.code != ExitCode::kOk || flags.operation.json) return outcome.code;
  if (!flags.member.has_value()) {
    console.Out(fmt::format("{}: receiver {} is forgotten, nothing waits for it\n", outcome.Name(),
                            Printable(flags.receiver, limits::kIdBytesMax)));
    return ExitCode::kOk;
  }
  console.Out(fmt::format(
      "{}: member {} is evicted, the engine of its commit group has ended; restart this receiver, "
      "then the others and the engine\n",
      outcome.Name(), *flags.member));
  return ExitCode::kOk;
}

}  // namespace

void AddEvictCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<EvictFlags>();
  CLI::App* command = AddCommand(
      app, kOperateGroup, "evict",
      "Removes a peer that will not come back: a member of a commit group, or a sender's "
      "receiver.\n"
      "\n"
      "--receiver asks a sender to forget an absent receiver: nothing waits for it, and no metric\n"
      "shows it afterwards.\n"
      "\n"
      "--member asks the receiver that leads a commit group to end the engine. Its ranks need "
      "each\n"
      "other: when a host will not come back, all members end their registrations, so that no "
      "rank\n"
      "waits for ever or continues with old weights. Afterwards restart the group's receivers, "
      "the\n"
      "leader first, and the engine.",
      {"dwsctl evict --member 2 --reason 'host r7 is lost' --address r5:7710",
       "dwsctl evict --receiver r7-rollout-0 --socket /run/dws/sender-0.sock"},
      flags->operation.json);
  CLI::Option* const member =
      command->add_option("--member", flags->member, "its --group-index; 0 is the leader itself");
  command->add_option("--receiver", flags->receiver, "the id of a sender's absent receiver")
      ->check(&NotUtf8)
      ->excludes(member);
  command->add_option("--reason", flags->reason, "for the logs of all members, or of the sender")
      ->check(&NotUtf8)
      ->capture_default_str();
  AddTargetFlags(*command, flags->operation.target);
  command->callback([flags, &context] { context.code = RunEvict(*flags, context.console); });
}

}  // namespace dws::dwsctl
