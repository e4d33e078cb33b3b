// How the worker's state reads in words, for people.
#include "receiver_daemon/worker/worker_status.h"

#include <algorithm>
#include <chrono>

#include "common/base/log/log.h"

namespace dws {

std::string StaleReason(const Subscription& subscription, const StaleRule& rule) {
  if (subscription.WithoutSender() < rule.after) return "";
  if (std::string behind = subscription.Behind(); !behind.empty()) return behind;
  return fmt::format("no accepted sender for more than {} s: {}",
                     std::chrono::ceil<std::chrono::seconds>(rule.after).count(),
                     subscription.MissingSenders());
}

void LogCommitted(const CommitReport& report, Duration took, bool first_release) {
  LogInfo("committed", {{"version", report.version.value()},
                        {"fetched_bytes", report.delta_bytes + report.full_bytes},
                        {"pause_ms", ToSeconds(report.pause) * 1e3},
                        {"seconds", ToSeconds(took)},
                        {"repaired", report.repaired},
                        {"first_release", first_release}});
}

NewestOffered FindNewestOffered(const WorkerStatus& worker, const Subscription& subscription) {
  NewestOffered newest;
  for (const Subscription::Peer& peer : subscription.Peers()) {
    if (peer.connected && peer.newest.has_value()) {
      newest.version = std::max(newest.version, peer.newest->value());
    }
  }
  const std::optional<StreamId> stream = subscription.stream();
  const bool same_stream = worker.live.has_value() && worker.live->stream == stream;
  const uint64_t reached = same_stream ? worker.live->version.value() : 0;
  uint64_t known = newest.version;
  const bool alone = subscription.WithoutSender() > Duration::zero();
  if (const auto heard = subscription.heard();
      alone && heard.has_value() && heard->stream == stream) {
    known = std::max(known, heard->version.value());
  }
  newest.lag = known > reached ? known - reached : 0;
  newest.lag_known = newest.lag > 0 || !alone;
  return newest;
}

std::string WhyEngineWaits(const WorkerStatus& worker, const Subscription& subscription) {
  if (worker.ready) return "";
  // Without a layout an engine cannot be attached.
  if (const Result<LayoutSetPtr> layouts = subscription.Layouts(); !layouts.ok()) {
    const std::vector<Subscription::Peer> peers = subscription.Peers();
    const bool connected = std::any_of(
        peers.begin(), peers.end(), [](const Subscription::Peer& peer) { return peer.connected; });
    return fmt::format("{}: {}", connected ? "no trainer layout yet" : "no sender is connected",
                       Message(layouts.status()));
  }
  const bool moves = worker.stage == "fetching" || worker.stage == "staging" ||
                     worker.stage == "committing" || worker.stage == "verifying";
  if (worker.drain != DrainStage::kNone || !moves) return worker.reason;
  const std::string what =
      worker.target.has_value() ? fmt::format("version {}", worker.target->value()) : "live memory";
  const std::string stage = worker.stage == "fetching"     ? "fetched"
                            : worker.stage == "staging"    ? "verified and staged"
                            : worker.stage == "committing" ? "committed"
                                                           : "verified";
  if (worker.stage_total_bytes == 0) return fmt::format("{} is being {}", what, stage);
  return fmt::format("{} is being {}: {} of {} bytes", what, stage, worker.stage_done_bytes,
                     worker.stage_total_bytes);
}

}  // namespace dws
