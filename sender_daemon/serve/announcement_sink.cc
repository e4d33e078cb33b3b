#include "sender_daemon/serve/announcement_sink.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dws {
namespace {

double Number(std::optional<WeightVersion> version) {
  return version.has_value() ? static_cast<double>(version->value()) : 0;
}

// How many of `versions` (ascending) a receiver has not committed.
double Lag(const std::vector<RetainedVersionPtr>& versions,
           std::optional<WeightVersion> committed) {
  return static_cast<double>(
      std::count_if(versions.begin(), versions.end(), [&](const RetainedVersionPtr& version) {
        return !committed.has_value() || version->version > *committed;
      }));
}

}  // namespace

void AnnouncementSink::FillStatus(v1::SenderStatus& status) const {
  for (const auto& [id, receiver] : hub_.Receivers()) {
    v1::ReceiverPeer& peer = *status.add_receivers();
    peer.set_receiver_id(id);
    peer.set_present(receiver.connection.has_value());
    peer.set_awaited(receiver.awaited);
    peer.set_committed_version(receiver.committed.value_or(WeightVersion(0)).value());
    peer.set_staged_version(receiver.staged.value_or(WeightVersion(0)).value());
    peer.set_last_error(receiver.last_error);
    peer.set_pause_seconds(receiver.last_commit.pause_seconds);
    peer.set_stage_seconds(receiver.last_commit.stage_seconds);
    peer.set_fetched_bytes(receiver.last_commit.fetched_bytes);
    peer.set_nacks(receiver.nacks);
    if (receiver.connection.has_value()) peer.set_view(hub_.ViewOf(*receiver.connection));
    peer.set_left_out(receiver.connection.has_value() && hub_.LeftOut(receiver));
  }
}

void AnnouncementSink::Show(Scrape& scrape) const {
  const RankStatePtr rank = hub_.Current();
  const std::vector<RetainedVersionPtr> versions =
      rank == nullptr ? std::vector<RetainedVersionPtr>() : rank->log->All();
  const std::map<std::string, AnnouncerState::Receiver> receivers = hub_.Receivers();
  double present = 0;
  // Present ones first, so that they are shown if there are too many for the page.
  std::vector<const std::pair<const std::string, AnnouncerState::Receiver>*> order;
  for (const auto& entry : receivers) order.push_back(&entry);
  const auto is_present = [](const auto* entry) { return entry->second.connection.has_value(); };
  std::stable_partition(order.begin(), order.end(), is_present);
  for (const auto* entry : order) {
    const AnnouncerState::Receiver& receiver = entry->second;
    const MetricLabels labels = {{"receiver_id", entry->first}};
    present += is_present(entry) ? 1 : 0;
    scrape.Gauge("dws_sender_receiver_present", "1 while the receiver is connected.",
                 is_present(entry) ? 1 : 0, labels);
    scrape.Gauge("dws_sender_receiver_committed_version",
                 "The newest version the receiver has committed of this stream; 0: none.",
                 Number(receiver.committed), labels);
    scrape.Gauge("dws_sender_receiver_left_out",
                 "1 while waits for all receivers leave this one out: it has committed nothing "
                 "for --laggard-after while others have.",
                 is_present(entry) && hub_.LeftOut(receiver) ? 1 : 0, labels);
    scrape.Gauge("dws_sender_receiver_lag_versions",
                 "Retained versions that the receiver has not committed.",
                 Lag(versions, receiver.committed), labels);
  }
  constexpr const char* kHelp =
      "Receivers that have connected to this sender, also before its restart.";
  scrape.Gauge("dws_sender_receivers", kHelp, present, {{"state", "present"}});
  scrape.Gauge("dws_sender_receivers", kHelp, static_cast<double>(receivers.size()) - present,
               {{"state", "absent"}});
}

}  // namespace dws
