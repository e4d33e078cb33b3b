#include "tools/dwsctl/status_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "tools/dwsctl/text_table.h"

namespace dws::dwsctl {
namespace {

constexpr int kVersionsShown = 10;
constexpr size_t kNameColumns = 24;
constexpr size_t kIndent = 2;

std::string FormatVersion(uint64_t version) {
  return version == 0 ? "-" : fmt::format("{}", version);
}

std::string FormatStream(const v1::StreamId& stream) {
  if (stream.incarnation() == 0) return "none yet";
  return fmt::format("{}:{:016x}{:016x}", stream.incarnation(), stream.id_hi(), stream.id_lo());
}

// "  pause     12.4 ms"
std::string Line(std::string_view key, std::string_view value) {
  return fmt::format("{:{}}{:<10}{}\n", "", kIndent, key,
                     Printable(value, kTextColumns - kIndent - 10));
}

// "    rollout-1: connection refused", under the table whose rows have no room for it.
std::string ErrorLine(std::string_view name, std::string_view error) {
  if (error.empty()) return "";
  const std::string line = fmt::format("{}: {}", Printable(name, kNameColumns), error);
  return fmt::format("{:{}}{}\n", "", 2 * kIndent, Printable(line, kTextColumns - 2 * kIndent));
}

std::string FormatVersions(const v1::SenderStatus& sender) {
  if (sender.versions().empty()) return "";
  std::vector<std::vector<std::string>> rows;
  const int first = std::max(0, sender.versions_size() - kVersionsShown);
  for (int i = sender.versions_size(); i-- > first;) {
    const v1::VersionStatus& version = sender.versions(i);
    rows.push_back({FormatVersion(version.version()),
                    version.base_version() == 0 ? "full" : FormatVersion(version.base_version()),
                    FormatShare(version.nnz(), version.elements()),
                    FormatBytes(version.wire_bytes()), FormatBytes(version.full_bytes()),
                    FormatSeconds(version.capture_seconds())});
  }
  std::string text = "\n" + FormatTable({{.title = "version"},
                                         {.title = "base"},
                                         {.title = "density"},
                                         {.title = "wire"},
                                         {.title = "full size"},
                                         {.title = "capture"}},
                                        rows, kIndent);
  if (first > 0) text += fmt::format("{:{}}and {} older\n", "", kIndent, first);
  return text;
}

std::string FormatReceivers(const v1::SenderStatus& sender) {
  if (sender.receivers().empty()) return "\n  no receiver has connected\n";
  std::vector<std::vector<std::string>> rows;
  std::string errors;
  for (const v1::ReceiverPeer& receiver : sender.receivers()) {
    rows.push_back(
        {Printable(receiver.receiver_id(), kNameColumns), receiver.present() ? "present" : "absent",
         FormatVersion(receiver.committed_version()), FormatVersion(receiver.staged_version()),
         FormatBytes(receiver.fetched_bytes()), FormatSeconds(receiver.pause_seconds())});
    errors += ErrorLine(receiver.receiver_id(), receiver.last_error());
  }
  return "\n" +
         FormatTable({{.title = "receiver", .left = true},
                      {.title = "state", .left = true},
                      {.title = "commit"},
                      {.title = "staged"},
                      {.title = "fetched"},
                      {.title = "pause"}},
                     rows, kIndent) +
         errors;
}

std::string FormatSender(const v1::SenderStatus& sender) {
  return Line("stream", FormatStream(sender.stream())) +
         Line("rank", fmt::format("{} of {}, epoch {}", sender.trainer_rank(), sender.world_size(),
                                  sender.rank_epoch())) +
         Line("trainer", sender.trainer_present() ? "present" : "absent") +
         Line("newest", FormatVersion(sender.newest_version())) +
         Line("memory",
              fmt::format("snapshot {}, retained deltas {}", FormatBytes(sender.snapshot_bytes()),
                          FormatBytes(sender.retained_bytes()))) +
         FormatVersions(sender) + FormatReceivers(sender);
}

std::string FormatSenders(const v1::ReceiverStatus& receiver) {
  if (receiver.senders().empty()) return "\n  no sender is configured\n";
  std::vector<std::vector<std::string>> rows;
  std::string errors;
  for (const v1::SenderPeer& sender : receiver.senders()) {
    rows.push_back({Printable(sender.address(), kNameColumns + 8),
                    sender.connected() ? "connected" : "not connected",
                    fmt::format("{}", sender.trainer_rank()),
                    FormatVersion(sender.newest_version())});
    errors += ErrorLine(sender.address(), sender.last_error());
  }
  return "\n" +
         FormatTable({{.title = "sender", .left = true},
                      {.title = "state", .left = true},
                      {.title = "rank"},
                      {.title = "newest"}},
                     rows, kIndent) +
         errors;
}

std::string FormatEngine(const v1::ReceiverStatus& receiver) {
  if (receiver.engine_ranks().empty()) return "\n  no engine rank has attached\n";
  std::vector<std::vector<std::string>> rows;
  for (const v1::EngineRankStatus& rank : receiver.engine_ranks()) {
    rows.push_back({fmt::format("{}", rank.engine_rank()), rank.attached() ? "attached" : "gone",
                    rank.generating() ? "generating" : "paused",
                    fmt::format("{}", rank.generation()), Printable(rank.client(), kNameColumns)});
  }
  return "\n" + FormatTable({{.title = "engine rank"},
                             {.title = "state", .left = true},
                             {.title = "engine", .left = true},
                             {.title = "generation"},
                             {.title = "client", .left = true}},
                            rows, kIndent);
}

std::string FormatReceiver(const v1::ReceiverStatus& receiver) {
  std::string target = "nothing in flight";
  if (receiver.target_version() != 0) {
    target = fmt::format("{}, {}", receiver.target_version(), receiver.stage());
  }
  return Line("receiver", receiver.receiver_id()) +
         Line("stream", FormatStream(receiver.stream())) +
         Line("committed", FormatVersion(receiver.committed_version())) + Line("target", target) +
         Line("commits", fmt::format("{}, repairs {}", receiver.commits(), receiver.repairs())) +
         Line("pause", fmt::format("{} (last)", FormatSeconds(receiver.last_pause_seconds()))) +
         FormatSenders(receiver) + FormatEngine(receiver);
}

}  // namespace

std::string FormatStatus(const v1::StatusReply& status) {
  std::string text =
      fmt::format("{} {}, job {}, up {}\n", Printable(status.daemon(), 16),
                  Printable(status.build_version(), 16),
                  status.job_id().empty() ? "none" : Printable(status.job_id(), kNameColumns),
                  FormatSeconds(status.uptime_seconds()));
  if (!status.ready()) {
    text += Line("state", "not ready: " + status.reason());
  } else {
    text += Line("state", status.reason().empty() ? "ready" : "ready, but " + status.reason());
  }
  switch (status.role_case()) {
    case v1::StatusReply::kSender:
      return text + FormatSender(status.sender());
    case v1::StatusReply::kReceiver:
      return text + FormatReceiver(status.receiver());
    case v1::StatusReply::ROLE_NOT_SET:
      break;
  }
  return text;
}

}  // namespace dws::dwsctl
