#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <optional>
#include <string_view>

#include "common/base/printable.h"
#include "tools/dwsctl/client/operation.h"

namespace dws::dwsctl {
namespace {

struct ForgetFlags {
  OperationFlags operation;
  std::string stream;
};

constexpr size_t kIdDigits = 32;

// All of `text` as a number.
std::optional<uint64_t> Number(std::string_view text, int base) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "7:0123456789abcdef0123456789abcdef", as status and refusals print it.
std::optional<v1::StreamId> ParseStream(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || text.size() - colon - 1 != kIdDigits) return std::nullopt;
  const auto incarnation = Number(text.substr(0, colon), 10);
  const auto high = Number(text.substr(colon + 1, kIdDigits / 2), 16);
  const auto low = Number(text.substr(colon + 1 + kIdDigits / 2), 16);
  if (!incarnation.has_value() || !high.has_value() || !low.has_value()) return std::nullopt;
  v1::StreamId stream;
  stream.set_incarnation(*incarnation);
  stream.set_id_hi(*high);
  stream.set_id_lo(*low);
  return stream;
}

// A CLI11 validator: returns what is wrong, or "".
std::string NotAStream(const std::string& text) {
  if (ParseStream(text).has_value()) return "";
  return fmt::format("expected INCARNATION:ID as the daemon prints it, found '{}'",
                     EscapeUnprintable(text));
}

ExitCode RunForget(const ForgetFlags& flags, Console& console) {
  v1::ForgetStreamRequest request;
  // Without a stream the daemon refuses the request, and its message names the stream it has.
  if (!flags.stream.empty()) *request.mutable_stream() = *ParseStream(flags.stream);
  const OperationOutcome outcome =
      RunOperation(flags.operation, request, "`dwsctl status` says which stream it has", console);
  if (outcome.code != ExitCode::kOk || flags.operation.json) return outcome.code;
  console.Out(fmt::format("{}: stream {} is forgotten; {}\n", outcome.Name(), flags.stream,
                          outcome.daemon.has_sender()
                              ? "start the trainer, and make the receivers forget it as well"
                              : "its engine runs again once a sender's newest version is proved"));
  return ExitCode::kOk;
}

}  // namespace

void AddForgetStreamCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<ForgetFlags>();
  CLI::App* command = AddCommand(
      app, kOperateGroup, "forget-stream",
      "Makes a daemon forget the stream it follows, whose incarnation is too high.\n"
      "\n"
      "A daemon refuses trainers with a lower incarnation than one it has seen, as old. When that\n"
      "one was wrong, or a clock went back, the trainer that should be followed is refused: this\n"
      "resets the fence. Stop every old trainer first; then ask the sender, then its receivers.\n"
      "A receiver pauses its engine until a sender's newest version is proved or committed again; "
      "it\n"
      "ends its step first, and waits up to 60 s for an engine that is inside a running section.\n"
      "Without --stream it changes nothing and says which stream the daemon has.",
      {"dwsctl forget-stream --socket /run/dws/receiver.sock",
       "dwsctl forget-stream --stream 7:0123456789abcdef0123456789abcdef"},
      flags->operation.json);
  command->add_option("--stream", flags->stream, "the one to forget, as the daemon prints it")
      ->type_name("STREAM")
      ->check(CLI::Validator(NotAStream, "", "stream"));
  AddTargetFlags(*command, flags->operation.target);
  command->callback([flags, &context] { context.code = RunForget(*flags, context.console); });
}

}  // namespace dws::dwsctl
