// Reads the parts of the sender at the time of a scrape: what is a state now is not counted as it
// changes.
#include "sender_daemon/app/sender_scrape.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"

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

void ShowReceivers(Scrape& scrape, const std::vector<RetainedVersionPtr>& versions,
                   const ReceiverHub& hub) {
  const std::map<std::string, AnnouncerState::Receiver> receivers = hub.Receivers();
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
    scrape.Gauge(
        "dws_sender_receiver_left_out",
        "1 while waits for all receivers do not wait for this one: it has committed nothing "
        "for --laggard-after, others have.",
        is_present(entry) && hub.LeftOut(receiver) ? 1 : 0, labels);
    scrape.Gauge("dws_sender_receiver_lag_versions",
                 "Retained versions that the receiver has not committed.",
                 Lag(versions, receiver.committed), labels);
  }
  constexpr const char* kHelp =
      "Receivers that have connected to this sender, before its restart too.";
  scrape.Gauge("dws_sender_receivers", kHelp, present, {{"state", "present"}});
  scrape.Gauge("dws_sender_receivers", kHelp, static_cast<double>(receivers.size()) - present,
               {{"state", "absent"}});
}

void ShowNewest(Scrape& scrape, const RankState& state, const RetainedVersion& newest) {
  if (!newest.base.has_value()) return;  // no delta: nothing to compare
  DWS_CHECK(!newest.object.empty());
  const auto elements = static_cast<double>(state.layout().element_count());
  scrape.Gauge("dws_sender_density_ratio", "Changed elements of the newest version, of all.",
               static_cast<double>(newest.nnz) / std::max(elements, 1.0));
  scrape.Gauge(
      "dws_sender_reduction_ratio",
      "Bytes of all weights, divided by those of the newest version's delta.",
      static_cast<double>(state.layout().size_bytes()) / static_cast<double>(newest.object.size()));
  scrape.Gauge("dws_sender_dense_groups",
               "Groups of tensors, by name, that change nearly everywhere in each version.",
               static_cast<double>(newest.density.dense_groups));
  scrape.Gauge("dws_sender_dense_version",
               "1 while the newest version's delta has an eighth of all weights' bytes, or more.",
               newest.density.dense ? 1 : 0);
}

void ShowBroadcasts(Scrape& scrape, const BroadcastView& view) {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  constexpr const char* kHelp =
      "Versions by what became of their broadcast; receivers fetch those that were not sent.";
  const char* const name = "dws_sender_broadcasts_total";
  scrape.Counter(name, kHelp, number(view.sent), {{"outcome", "sent"}});
  scrape.Counter(name, kHelp, number(view.failed), {{"outcome", "failed"}});
  scrape.Counter(name, kHelp, number(view.skipped), {{"outcome", "skipped"}});
  scrape.Counter("dws_sender_broadcast_bytes_total",
                 "Bytes of objects that were broadcast, each counted once for all receivers.",
                 number(view.sent_bytes));
  scrape.Counter("dws_sender_broadcast_epochs_failed_total",
                 "Epochs of broadcasts that ended with a failure or a receiver's loss.",
                 number(view.epochs_failed));
  scrape.Gauge("dws_sender_broadcast_epoch", "The epoch that is ready; 0: none.",
               number(view.epoch));
  constexpr const char* kReceivers =
      "Receivers that can take part in broadcasts, and those in the epoch that is ready.";
  scrape.Gauge("dws_sender_broadcast_receivers", kReceivers, number(view.receivers),
               {{"state", "able"}});
  scrape.Gauge("dws_sender_broadcast_receivers", kReceivers, number(view.members),
               {{"state", "joined"}});
}

void ShowShared(Scrape& scrape, const SharedView& view) {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  constexpr const char* kVersions =
      "Versions written to the shared directory, by what they are: full tensors too, or a delta.";
  const char* const name = "dws_sender_shared_versions_total";
  scrape.Counter(name, kVersions, number(view.anchors), {{"kind", "anchor"}});
  scrape.Counter(name, kVersions, number(view.deltas), {{"kind", "delta"}});
  scrape.Counter("dws_sender_shared_bytes_total", "Bytes written to the shared directory.",
                 number(view.bytes));
  scrape.Counter("dws_sender_shared_failures_total",
                 "Tries to write to the shared directory that came to nothing.",
                 number(view.failures));
  scrape.Gauge("dws_sender_shared_failing",
               "1 while the last try to write to the shared directory came to nothing.",
               view.trouble.ok() ? 0 : 1);
  scrape.Gauge("dws_sender_shared_newest_version",
               "The newest version in the shared directory; 0: none.",
               number(view.newest.value_or(WeightVersion(0)).value()));
}

void ShowSlime(Scrape& scrape, const SlimeView& view) {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  constexpr const char* kVersions =
      "Versions written to the folder of slime's versions: full checkpoints, or deltas.";
  DWS_CHECK(view.fulls <= view.versions);
  const char* const name = "dws_sender_slime_versions_total";
  scrape.Counter(name, kVersions, number(view.fulls), {{"kind", "full"}});
  scrape.Counter(name, kVersions, number(view.versions - view.fulls), {{"kind", "delta"}});
  scrape.Counter("dws_sender_slime_bytes_total",
                 "Bytes of tensors written to the folder of slime's versions.", number(view.bytes));
  scrape.Counter("dws_sender_slime_failures_total",
                 "Tries to write to the folder of slime's versions that came to nothing.",
                 number(view.failures));
  scrape.Gauge("dws_sender_slime_failing",
               "1 while the last try to write to the folder of slime's versions came to nothing.",
               view.trouble.ok() ? 0 : 1);
  scrape.Gauge("dws_sender_slime_newest_version",
               "The newest version in the folder of slime's versions; 0: none.",
               Number(view.newest));
}

}  // namespace

void ShowSender(Metrics& registry, SenderStates states) {
  registry.OnCollect([states = std::move(states)](Scrape& scrape) {
    const RankStatePtr rank = states.hub->Current();
    const std::vector<RetainedVersionPtr> versions =
        rank == nullptr ? std::vector<RetainedVersionPtr>() : rank->log->All();
    if (!versions.empty()) ShowNewest(scrape, *rank, *versions.back());
    scrape.Gauge("dws_sender_newest_version", "The newest published version; 0: none.",
                 versions.empty() ? 0 : Number(versions.back()->version));
    scrape.Gauge("dws_sender_retained_bytes", "Bytes of the retained deltas.",
                 rank == nullptr ? 0 : static_cast<double>(rank->log->retained_bytes()));
    scrape.Gauge("dws_sender_retained_bytes_max", "The cap on retained bytes.",
                 static_cast<double>(states.retain_bytes_max));
    scrape.Gauge("dws_sender_retained_versions", "Retained versions.",
                 static_cast<double>(versions.size()));
    scrape.Gauge("dws_sender_retained_versions_max", "The cap on retained versions.",
                 static_cast<double>(states.retain_versions_max));
    scrape.Gauge("dws_sender_snapshot_bytes", "Memory of the snapshot that versions are made from.",
                 rank == nullptr ? 0 : static_cast<double>(rank->snapshot->size_bytes()));
    scrape.Gauge("dws_sender_trainer_present", "1 while a trainer is registered.",
                 states.trainer_present() ? 1 : 0);
    ShowReceivers(scrape, versions, *states.hub);
    ShowBroadcasts(scrape,
                   states.broadcaster == nullptr ? BroadcastView() : states.broadcaster->view());
    ShowShared(scrape, states.shared ? states.shared() : SharedView());
    ShowSlime(scrape, states.slime ? states.slime() : SlimeView());
  });
}

}  // namespace dws
