#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/client/operation.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

constexpr char kAfterHangup[] = "the comparison has ended, nothing was changed";

// The first lane of a digest: enough to tell digests apart; --json has both lanes.
std::string ShortDigest(bool present, const v1::Digest& digest) {
  return present ? fmt::format("{:016x}", digest.lane0()) : "ranks differ";
}

std::string MismatchText(const OperationOutcome& outcome) {
  const v1::OperationProgress& last = outcome.last;
  std::string text =
      fmt::format("{}: {} slice{} differ{} from what was published, compared at version {}; {}\n",
                  outcome.Name(), last.mismatches(), last.mismatches() == 1 ? "" : "s",
                  last.mismatches() == 1 ? "s" : "", FormatVersion(last.version()),
                  outcome.daemon.has_sender()
                      ? "restart this sender: what it publishes from now on is not the trainer's"
                      : "the receiver takes them in full by itself, `dwsctl watch` shows it");
  std::vector<std::vector<std::string>> rows;
  for (const v1::SliceMismatch& slice : last.mismatched()) {
    rows.push_back({Printable(slice.tensor(), 20), fmt::format("{}", slice.trainer_rank()),
                    fmt::format("{}", slice.rank_slice()), FormatVersion(slice.version()),
                    ShortDigest(slice.has_expected(), slice.expected()),
                    ShortDigest(slice.has_found(), slice.found())});
  }
  if (rows.empty()) return text;
  text += FormatTable({{.title = "tensor", .left = true},
                       {.title = "rank"},
                       {.title = "slice"},
                       {.title = "version"},
                       {.title = "expected", .left = true},
                       {.title = "found", .left = true}},
                      rows, 2);
  const uint64_t more = last.mismatches() - std::min<uint64_t>(last.mismatches(), rows.size());
  return more == 0 ? text : text + fmt::format("  and {} more\n", more);
}

std::string ResultText(const OperationOutcome& outcome) {
  const v1::OperationProgress& last = outcome.last;
  if (last.mismatches() > 0) return MismatchText(outcome);
  if (last.version() == 0) return fmt::format("{}: no version to compare with\n", outcome.Name());
  return fmt::format("{}: {} of weights compared, all as published at version {}\n", outcome.Name(),
                     FormatBytes(last.done_bytes()), last.version());
}

ExitCode RunVerify(const OperationFlags& flags, Console& console) {
  const OperationOutcome outcome = RunOperation(flags, v1::VerifyRequest(), kAfterHangup, console);
  if (outcome.code != ExitCode::kOk) return outcome.code;
  if (!flags.json) console.Out(ResultText(outcome));
  return outcome.last.mismatches() > 0 ? ExitCode::kMismatch : ExitCode::kOk;
}

}  // namespace

void AddVerifyCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<OperationFlags>();
  CLI::App* command = AddCommand(
      app, kOperateGroup, "verify",
      "Compares the weights in memory with what was published.\n"
      "\n"
      "Receiver: recomputes the digests of the engine's live weights and compares them with the\n"
      "senders'. Sender: does so for its snapshot. Training and generating go on meanwhile.\n"
      "^C ends the comparison. Exits with 5 when weights differ.",
      {"dwsctl verify --socket /run/dws/receiver.sock",
       "dwsctl verify --address 10.0.0.5:7710 --json | tail -1 | jq .mismatches"},
      flags->json);
  AddTargetFlags(*command, flags->target);
  command->callback([flags, &context] { context.code = RunVerify(*flags, context.console); });
}

}  // namespace dws::dwsctl
