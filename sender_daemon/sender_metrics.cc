#include "sender_daemon/sender_metrics.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace dws {
namespace {

// The label of a block mode. What is no block's payload (headers, indexes, the manifest) has one of
// its own: the sum over encodings is what travels.
std::string Encoding(size_t mode) {
  if (mode == static_cast<size_t>(BlockMode::kEmpty)) return "framing";
  std::string name(ToString(static_cast<BlockMode>(mode)));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

template <size_t... kMode>
std::array<Counter, sizeof...(kMode)> WireBytes(Metrics& metrics, std::index_sequence<kMode...>) {
  return {metrics.AddCounter("dws_sender_wire_bytes_total",
                             "Bytes of published deltas by the encoding of their blocks.",
                             {{"encoding", Encoding(kMode)}})...};
}

Counter ServedBytes(Metrics& metrics, const std::string& kind) {
  return metrics.AddCounter(
      "dws_sender_served_bytes_total",
      "Bytes sent to receivers: deltas, several squashed into one, full tensors.",
      {{"kind", kind}});
}

Counter GpuBlocks(Metrics& metrics, const std::string& how) {
  return metrics.AddCounter("dws_sender_gpu_blocks_total",
                            "Blocks of captured weights on GPUs: compared there, or copied whole.",
                            {{"how", how}});
}

double Number(std::optional<WeightVersion> version) {
  return version.has_value() ? static_cast<double>(version->value()) : 0;
}

// How many of `versions` (ascending) a receiver has still to commit.
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
  // Those present first: they are shown when there are too many for the page.
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
  if (!newest.base.has_value()) return;  // no delta: there is nothing to compare
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

SenderMetrics::SenderMetrics(const std::string& job_id, uint32_t trainer_rank)
    : registry_({{"dws_job", job_id}, {"trainer_rank", std::to_string(trainer_rank)}}),
      publish_seconds_(registry_.AddHistogram(
          "dws_sender_publish_seconds",
          "The trainer's stall: from the arrival of Publish to its reply, whatever the outcome.",
          buckets::kStallSeconds)),
      capture_seconds_(registry_.AddHistogram("dws_sender_capture_seconds",
                                              "Passes over the trainer's memory, for each version.",
                                              buckets::kStallSeconds)),
      seal_seconds_(registry_.AddHistogram("dws_sender_seal_seconds",
                                           "Making a delta object of a captured version.",
                                           buckets::kStageSeconds)),
      ack_seconds_(registry_.AddHistogram(
          "dws_sender_ack_seconds",
          "From a version's announcement to a receiver until it had committed that version.",
          buckets::kStageSeconds)),
      published_versions_(
          registry_.AddCounter("dws_sender_published_versions_total", "Versions published.")),
      published_elements_(registry_.AddCounter("dws_sender_published_elements_total",
                                               "Elements of all published deltas' weights.")),
      changed_elements_(registry_.AddCounter("dws_sender_changed_elements_total",
                                             "Elements that published deltas change.")),
      full_bytes_(registry_.AddCounter(
          "dws_sender_full_bytes_total",
          "What all published deltas would have been as full tensors, in bytes.")),
      dense_bytes_(registry_.AddCounter(
          "dws_sender_dense_bytes_total",
          "Bytes of published deltas' blocks that are of groups which change nearly everywhere.")),
      gpu_compared_blocks_(GpuBlocks(registry_, "compared")),
      gpu_copied_blocks_(GpuBlocks(registry_, "copied")),
      wire_bytes_(WireBytes(registry_, std::make_index_sequence<kBlockModes>())),
      served_bytes_{ServedBytes(registry_, "delta"), ServedBytes(registry_, "squash"),
                    ServedBytes(registry_, "full")},
      nacks_(registry_, "dws_sender_nacks_total", "Versions that receivers refused, by reason."),
      verify_mismatches_(registry_.AddCounter(
          "dws_sender_verify_mismatches_total",
          "Slices of the snapshot that a Verify found to differ from what was published.")) {}

void SenderMetrics::OnPublishReply(Duration stall) { publish_seconds_.Observe(ToSeconds(stall)); }

void SenderMetrics::OnPublished(const RankState& state, const RetainedVersion& version,
                                Duration seal_time) {
  published_versions_.Increment();
  capture_seconds_.Observe(version.capture_seconds);
  seal_seconds_.Observe(ToSeconds(seal_time));
  gpu_compared_blocks_.Increment(static_cast<double>(version.compared_blocks));
  gpu_copied_blocks_.Increment(static_cast<double>(version.copied_blocks));
  if (!version.base.has_value()) return;
  published_elements_.Increment(static_cast<double>(state.layout().element_count()));
  changed_elements_.Increment(static_cast<double>(version.nnz));
  full_bytes_.Increment(static_cast<double>(state.layout().size_bytes()));
  dense_bytes_.Increment(static_cast<double>(version.density.dense_bytes));
  for (size_t mode = 1; mode < kBlockModes; ++mode) {
    wire_bytes_[mode].Increment(static_cast<double>(version.payload_bytes[mode]));
  }
  const uint64_t payload =
      std::accumulate(version.payload_bytes.begin(), version.payload_bytes.end(), uint64_t{0});
  wire_bytes_[0].Increment(static_cast<double>(version.object.size() - payload));
  wire_bytes_[static_cast<size_t>(BlockMode::kClassSplit)].Increment(
      static_cast<double>(version.split_payload_bytes));
}

void SenderMetrics::OnAcknowledged(Duration since_announced) {
  ack_seconds_.Observe(ToSeconds(since_announced));
}

void SenderMetrics::OnServed(ServedKind kind, uint64_t bytes) {
  served_bytes_[static_cast<size_t>(kind)].Increment(static_cast<double>(bytes));
}

void SenderMetrics::OnNack(uint32_t code) { nacks_.Increment(code); }

void SenderMetrics::OnVerifyMismatches(uint64_t slices) {
  verify_mismatches_.Increment(static_cast<double>(slices));
}

void SenderMetrics::Show(States states) {
  registry_.OnCollect([states = std::move(states)](Scrape& scrape) {
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
