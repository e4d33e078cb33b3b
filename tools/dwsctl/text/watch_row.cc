#include "tools/dwsctl/text/watch_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kNameColumnsMax = 64;
constexpr int kRateVersions = 10;

// "830", "1.2K", "64M": at most 5 columns.
std::string ShortBytes(double bytes) {
  constexpr std::array<const char*, 7> kUnits = {"", "K", "M", "G", "T", "P", "E"};
  if (!std::isfinite(bytes) || bytes < 0) return "-";
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0 || bytes >= 9.95) return fmt::format("{:.0f}{}", bytes, kUnits[unit]);
  return fmt::format("{:.1f}{}", bytes, kUnits[unit]);
}

// "830us", "12.4ms", "3.2s", "4m12s", "3h20m", "5d1h".
std::string ShortSeconds(double seconds) {
  std::string text = FormatSeconds(seconds);
  const auto replace = [&text](std::string_view from, std::string_view to) {
    if (const size_t at = text.find(from); at != std::string::npos) {
      text.replace(at, from.size(), to);
    }
  };
  replace(" min", "m");
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

std::string ShortShare(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return percent < 9.995 ? fmt::format("{:.2f}%", percent) : fmt::format("{:.1f}%", percent);
}

std::string ShortRate(double rate) { return rate < 1 ? "-" : ShortBytes(rate) + "/s"; }

std::string Lag(uint64_t newest, uint64_t version) {
  return fmt::format("{}", newest > version ? newest - version : 0);
}

void FillSender(const v1::SenderStatus& sender, WatchRow& row) {
  row.name = fmt::format("sender {}", sender.trainer_rank());
  row.version = FormatVersion(sender.newest_version());
  const uint64_t present = sender.receivers_present();
  uint64_t current = 0;
  // Among many receivers the status lists those that are behind.
  uint64_t slowest = sender.newest_version();
  for (const v1::ReceiverPeer& receiver : sender.receivers()) {
    if (!receiver.present()) continue;
    slowest = std::min(slowest, receiver.committed_version());
  }
  row.lag = present == 0 ? "-" : Lag(sender.newest_version(), slowest);
  if (!sender.versions().empty()) {
    const v1::VersionStatus& newest = sender.versions(sender.versions_size() - 1);
    const bool compared = newest.base_version() != 0 || newest.nnz() != 0;
    row.density = compared ? ShortShare(newest.nnz(), newest.elements()) : "full";
    row.wire = ShortBytes(static_cast<double>(newest.wire_bytes()));
    row.pause = ShortSeconds(newest.capture_seconds());
    current = newest.committed();
  }
  if (!sender.trainer_present()) {
    row.stage = "no trainer";
  } else if (present == 0) {
    row.stage = "no receiver";
  } else {
    row.stage = fmt::format("{} of {} have it", current, present);
    row.done = static_cast<double>(current) / static_cast<double>(present);
  }
}

void FillReceiver(const v1::ReceiverStatus& receiver, WatchRow& row) {
  row.name = Printable(receiver.receiver_id(), kNameColumnsMax);
  row.version = FormatVersion(receiver.committed_version());
  row.lag = receiver.has_version_lag() ? fmt::format("{}", receiver.version_lag()) : "?";
  const v1::LastCommit& commit = receiver.last_commit();
  if (commit.version() != 0) {
    row.density = commit.nnz() == 0 ? "full" : ShortShare(commit.nnz(), commit.elements());
    row.wire = ShortBytes(static_cast<double>(commit.fetched_bytes()));
    row.pause = ShortSeconds(commit.pause_seconds());
  }
  row.stage = Printable(receiver.stage(), kNameColumnsMax);
  if (receiver.stage_total_bytes() > 0) {
    row.done = static_cast<double>(receiver.stage_done_bytes()) /
               static_cast<double>(receiver.stage_total_bytes());
  }
}

double SenderRate(const v1::SenderStatus& sender) {
  const int count = sender.versions_size();
  const int first = std::max(0, count - kRateVersions);
  if (count - first < 2) return 0;
  double bytes = 0;  // published after version `first`
  for (int i = first + 1; i < count; ++i) {
    bytes += static_cast<double>(sender.versions(i).wire_bytes());
  }
  const double seconds =
      sender.versions(first).age_seconds() - sender.versions(count - 1).age_seconds();
  return seconds > 0 ? bytes / seconds : 0;
}

double ReceiverRate(const v1::StatusReply& status, const v1::StatusReply* previous) {
  const v1::ReceiverStatus& receiver = status.receiver();
  if (previous != nullptr && previous->has_receiver()) {
    const v1::ReceiverStatus& before = previous->receiver();
    const double seconds = status.unix_seconds() - previous->unix_seconds();
    const bool same = receiver.target_version() != 0 && before.stage() == receiver.stage() &&
                      before.target_version() == receiver.target_version();
    if (same && seconds > 0 && receiver.stage_done_bytes() > before.stage_done_bytes()) {
      return static_cast<double>(receiver.stage_done_bytes() - before.stage_done_bytes()) / seconds;
    }
  }
  const v1::LastCommit& commit = receiver.last_commit();
  if (commit.version() == 0 || commit.fetch_seconds() <= 0) return 0;
  return static_cast<double>(commit.fetched_bytes()) / commit.fetch_seconds();
}

}  // namespace

double WatchRate(const v1::StatusReply& status, const v1::StatusReply* previous) {
  return status.has_sender() ? SenderRate(status.sender()) : ReceiverRate(status, previous);
}

WatchRow MakeWatchRow(const v1::StatusReply& status, const v1::StatusReply* previous) {
  WatchRow row{.name = Printable(status.daemon(), kNameColumnsMax),
               .version = "-",
               .lag = "-",
               .density = "-",
               .wire = "-",
               .stage = "-",
               .pause = "-",
               .unix_seconds = status.unix_seconds()};
  if (status.has_sender()) FillSender(status.sender(), row);
  if (status.has_receiver()) FillReceiver(status.receiver(), row);
  row.rate = ShortRate(WatchRate(status, previous));
  if (status.drain() == v1::DRAIN_STATE_DRAINING) row.stage = "draining";
  if (status.drain() == v1::DRAIN_STATE_DRAINED) row.stage = "drained";
  row.note = Clean(status.ready() ? status.reason() : "not ready: " + status.reason());
  if (!row.note.empty()) row.mood = WatchRow::Mood::kWaiting;
  return row;
}

WatchRow MakeLostRow(const std::string& target, const v1::StatusReply* last, const Status& why) {
  WatchRow row = MakeWatchRow(last != nullptr ? *last : v1::StatusReply(), nullptr);
  if (last == nullptr || row.name.empty()) row.name = Printable(target, kNameColumnsMax);
  row.stage = "no answer";
  row.done.reset();
  row.rate = "-";
  row.mood = WatchRow::Mood::kTrouble;
  row.note = Clean(Message(why));
  return row;
}

}  // namespace dws::dwsctl
