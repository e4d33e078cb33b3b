// The tables of status_text.h that other commands also show. Errors are below a table, because its
// rows have no room for them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/text/status_text.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kNameColumns = 20;
constexpr size_t kIndent = 2;
constexpr size_t kErrorLinesMax = 4;

uint64_t Behind(uint64_t newest, uint64_t version) {
  return newest > version ? newest - version : 0;
}

std::string Count(uint64_t count) { return fmt::format("{}", count); }

std::string StateOf(const v1::ReceiverPeer& receiver) {
  if (!receiver.present()) return receiver.awaited() ? "awaited" : "absent";
  return receiver.left_out() ? "left out" : "present";
}

}  // namespace

std::string FormatErrorLine(std::string_view name, std::string_view error, size_t columns) {
  if (error.empty()) return "";
  const std::string line = fmt::format("{}: {}", Printable(name, kNameColumns), error);
  const size_t indent = 2 * kIndent;
  return fmt::format("{:{}}{}\n", "", indent,
                     Wrapped(line, std::max<size_t>(columns, 30) - indent - kIndent, kErrorLinesMax,
                             indent + kIndent));
}

std::string FormatVersionTable(const v1::SenderStatus& sender, size_t shown) {
  std::vector<std::vector<std::string>> rows;
  const int count = sender.versions_size();
  const int first = count - static_cast<int>(std::min<size_t>(shown, static_cast<size_t>(count)));
  for (int i = count; i-- > first;) {
    const v1::VersionStatus& version = sender.versions(i);
    const bool compared = version.base_version() != 0 || version.nnz() != 0;
    rows.push_back({FormatVersion(version.version()),
                    version.base_version() == 0 ? "full" : FormatVersion(version.base_version()),
                    compared ? FormatShare(version.nnz(), version.elements()) : "-",
                    FormatBytes(version.wire_bytes()),
                    FormatRatio(version.full_bytes(), version.wire_bytes()),
                    FormatSeconds(version.capture_seconds()), FormatSeconds(version.age_seconds()),
                    Count(version.committed())});
  }
  std::string text = FormatTable({{.title = "version"},
                                  {.title = "base"},
                                  {.title = "density"},
                                  {.title = "wire"},
                                  {.title = "reduced"},
                                  {.title = "capture"},
                                  {.title = "age"},
                                  {.title = "committed"}},
                                 rows, kIndent);
  if (first > 0) text += fmt::format("{:{}}and {} older\n", "", kIndent, first);
  return text;
}

std::string FormatReceiverTable(const v1::SenderStatus& sender, size_t columns) {
  if (sender.receivers().empty()) return "  no receiver has connected\n";
  std::vector<std::vector<std::string>> rows;
  std::string errors;
  for (const v1::ReceiverPeer& receiver : sender.receivers()) {
    rows.push_back({Printable(receiver.receiver_id(), kNameColumns), StateOf(receiver),
                    FormatVersion(receiver.committed_version()),
                    Count(Behind(sender.newest_version(), receiver.committed_version())),
                    FormatVersion(receiver.staged_version()), FormatBytes(receiver.fetched_bytes()),
                    FormatSeconds(receiver.pause_seconds()), Count(receiver.nacks())});
    errors += FormatErrorLine(receiver.receiver_id(), receiver.last_error(), columns);
  }
  const uint64_t known = uint64_t{sender.receivers_present()} + sender.receivers_absent();
  const auto listed = static_cast<uint64_t>(sender.receivers_size());
  const std::string more =
      known > listed
          ? fmt::format("{:{}}and {} more; those in trouble, or behind, are listed first\n", "",
                        kIndent, known - listed)
          : "";
  return FormatTable({{.title = "receiver", .left = true},
                      {.title = "state", .left = true},
                      {.title = "commit"},
                      {.title = "lag"},
                      {.title = "staged"},
                      {.title = "fetched"},
                      {.title = "pause"},
                      {.title = "nacks"}},
                     rows, kIndent) +
         more + errors;
}

std::string FormatSenderTable(const v1::ReceiverStatus& receiver, size_t columns) {
  if (receiver.senders().empty()) return "  no sender is configured\n";
  std::vector<std::vector<std::string>> rows;
  std::string errors;
  for (const v1::SenderPeer& sender : receiver.senders()) {
    rows.push_back({Printable(sender.address(), kNameColumns + 6),
                    sender.connected() ? "connected" : "not connected",
                    Count(sender.trainer_rank()), FormatVersion(sender.newest_version())});
    errors += FormatErrorLine(sender.address(), sender.last_error(), columns);
    rows.back().push_back(sender.delta_source().empty() ? "-" : sender.delta_source());
    rows.back().push_back(sender.full_way().empty() ? "-" : sender.full_way());
    errors += FormatErrorLine(sender.address(), sender.full_way_reason(), columns);
  }
  return FormatTable({{.title = "sender", .left = true},
                      {.title = "state", .left = true},
                      {.title = "rank"},
                      {.title = "newest"},
                      {.title = "delta by", .left = true},
                      {.title = "full by", .left = true}},
                     rows, kIndent) +
         errors;
}

std::string FormatTarget(const v1::ReceiverStatus& receiver) {
  if (receiver.target_version() == 0) return "nothing in flight";
  std::string text = fmt::format("{}, {}", receiver.target_version(), receiver.stage());
  if (receiver.stage_total_bytes() == 0) return text;
  const uint64_t done = std::min(receiver.stage_done_bytes(), receiver.stage_total_bytes());
  return fmt::format(
      "{}, {:.0f} % of {}", text,
      100.0 * static_cast<double>(done) / static_cast<double>(receiver.stage_total_bytes()),
      FormatBytes(receiver.stage_total_bytes()));
}

namespace {

// The time that the last version took, by stage; stages that took no time are left out.
std::string FormatTimes(const v1::VersionTimes& times, size_t columns) {
  if (times.total_seconds() <= 0) return "";
  std::string text = fmt::format("{} since it was announced", FormatSeconds(times.total_seconds()));
  const char* separator = ": ";
  for (int i = 2; i < times.GetDescriptor()->field_count(); ++i) {  // total and early stand apart
    const auto* field = times.GetDescriptor()->field(i);
    const double seconds = times.GetReflection()->GetDouble(times, field);
    if (seconds <= 0) continue;
    const std::string name = field->name().substr(0, field->name().rfind("_seconds"));
    text += fmt::format("{}{} {}", std::exchange(separator, ", "), name, FormatSeconds(seconds));
  }
  if (times.early_seconds() > 0) {
    text += fmt::format("; {} before that", FormatSeconds(times.early_seconds()));
  }
  return FormatKeyLine("took", text, columns);
}

}  // namespace

std::string FormatLastCommit(const v1::ReceiverStatus& receiver, size_t columns) {
  if (!receiver.has_last_commit() || receiver.last_commit().version() == 0) return "";
  const v1::LastCommit& commit = receiver.last_commit();
  std::string text = fmt::format("version {}, {} fetched, {} less than in full, density {}{}; ",
                                 commit.version(), FormatBytes(commit.fetched_bytes()),
                                 FormatRatio(commit.full_bytes(), commit.fetched_bytes()),
                                 FormatShare(commit.nnz(), commit.elements()),
                                 commit.repaired() ? ", some tensors in full" : "");
  text +=
      fmt::format("fetch {}, stage {}, commit {}, pause {}", FormatSeconds(commit.fetch_seconds()),
                  FormatSeconds(commit.stage_seconds()), FormatSeconds(commit.commit_seconds()),
                  FormatSeconds(commit.pause_seconds()));
  if (commit.unix_seconds() > 0) text += "; " + FormatUnixTime(commit.unix_seconds());
  return FormatKeyLine("last", text, columns) + FormatTimes(commit.times(), columns);
}

}  // namespace dws::dwsctl
