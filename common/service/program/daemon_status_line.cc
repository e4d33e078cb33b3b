#include "common/service/program/daemon_status_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/admin.pb.h"

namespace dws {
namespace {

// Absent receivers are skipped, so that a receiver that was removed does not appear as the slowest.
std::string SenderLine(const v1::SenderStatus& sender) {
  uint64_t slowest = sender.newest_version();
  int present = 0;
  for (const v1::ReceiverPeer& peer : sender.receivers()) {
    if (!peer.present()) continue;
    ++present;
    slowest = std::min<uint64_t>(slowest, peer.committed_version());
  }
  return fmt::format(
      "version {}, receivers {}{}", sender.newest_version(), present,
      slowest < sender.newest_version() ? fmt::format(", slowest at {}", slowest) : "");
}

std::string ReceiverLine(const v1::ReceiverStatus& receiver) {
  const std::string stage =
      receiver.stage().empty() || receiver.stage() == "idle" ? "" : ", " + receiver.stage();
  const std::string lag =
      receiver.version_lag_unknown() ? "unknown" : fmt::to_string(receiver.version_lag());
  const std::string line =
      fmt::format("version {}, lag {}{}", receiver.committed_version(), lag, stage);
  if (receiver.has_follower()) return line;  // it has no engine ranks
  const auto attached =
      std::count_if(receiver.engine_ranks().begin(), receiver.engine_ranks().end(),
                    [](const auto& rank) { return rank.attached(); });
  return fmt::format("{}, engine ranks {} of {}", line, attached, receiver.engine_ranks_size());
}

}  // namespace

std::string StatusLine(const v1::StatusReply& status) {
  std::string line = "running";
  if (status.has_sender()) line = SenderLine(status.sender());
  if (status.has_receiver()) line = ReceiverLine(status.receiver());
  if (!status.ready()) return fmt::format("not ready: {} ({})", status.reason(), line);
  return status.reason().empty() ? line : fmt::format("{}; {}", line, status.reason());
}

}  // namespace dws
