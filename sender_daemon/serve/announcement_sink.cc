#include "sender_daemon/serve/announcement_sink.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dws {
namespace {

uint64_t Number(std::optional<WeightVersion> version) {
  return version.value_or(WeightVersion(0)).value();
}

// How many of `versions` (ascending) a receiver has not committed.
uint64_t Lag(const std::vector<RetainedVersionPtr>& versions,
             std::optional<WeightVersion> committed) {
  return static_cast<uint64_t>(
      std::count_if(versions.begin(), versions.end(), [&](const RetainedVersionPtr& version) {
        return !committed.has_value() || version->version > *committed;
      }));
}

}  // namespace

void AnnouncementSink::FillStatus(v1::SenderStatus& status) const {
  const RankStatePtr rank = hub_.Current();
  const std::vector<RetainedVersionPtr> versions =
      rank == nullptr ? std::vector<RetainedVersionPtr>() : rank->log->All();
  const std::map<std::string, AnnouncerState::Receiver> receivers = hub_.Receivers();
  // Present ones first, so that they are shown if there are too many for the page of metrics.
  std::vector<const std::pair<const std::string, AnnouncerState::Receiver>*> order;
  for (const auto& entry : receivers) order.push_back(&entry);
  const auto absent = std::stable_partition(order.begin(), order.end(), [](const auto* entry) {
    return entry->second.connection.has_value();
  });
  status.set_receivers_present(static_cast<uint32_t>(absent - order.begin()));
  status.set_receivers_absent(static_cast<uint32_t>(order.end() - absent));
  for (const auto* entry : order) {
    const AnnouncerState::Receiver& receiver = entry->second;
    v1::ReceiverPeer& peer = *status.add_receivers();
    peer.set_receiver_id(entry->first);
    peer.set_present(receiver.connection.has_value());
    peer.set_awaited(receiver.awaited);
    peer.set_committed_version(Number(receiver.committed));
    peer.set_lag_versions(Lag(versions, receiver.committed));
    peer.set_staged_version(Number(receiver.staged));
    peer.set_last_error(receiver.last_error);
    peer.set_pause_seconds(receiver.last_commit.pause_seconds);
    peer.set_stage_seconds(receiver.last_commit.stage_seconds);
    peer.set_fetched_bytes(receiver.last_commit.fetched_bytes);
    peer.set_nacks(receiver.nacks);
    if (receiver.connection.has_value()) peer.set_view(hub_.ViewOf(*receiver.connection));
    peer.set_left_out(receiver.connection.has_value() && hub_.LeftOut(receiver));
  }
}

}  // namespace dws
