// Reads the parts of the sender at the time of a scrape: a present state is not counted while it
// changes.
#include "sender_daemon/app/sender_scrape.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace dws {
namespace {

void ShowNewest(Scrape& scrape, const RankState& state, const RetainedVersion& newest) {
  const bool compared = newest.base.has_value() || newest.full == FullCause::kAsked ||
                        newest.full == FullCause::kDense;
  if (!compared) return;
  const auto elements = static_cast<double>(state.layout().element_count());
  scrape.Gauge("dws_sender_density_ratio", "Changed elements of the newest version, of all.",
               static_cast<double>(newest.nnz) / std::max(elements, 1.0));
  if (!newest.base.has_value()) return;
  DWS_CHECK(!newest.object.empty());
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

// Names of views are longer than labels may be: `dwsctl status` has each.
void ShowViews(Scrape& scrape, const std::vector<ReceiverHub::ServedView>& views) {
  double snapshot_bytes = 0;
  double retained_bytes = 0;
  for (const ReceiverHub::ServedView& view : views) {
    snapshot_bytes += static_cast<double>(view.state->snapshot->size_bytes());
    retained_bytes += static_cast<double>(view.state->log->retained_bytes());
  }
  scrape.Gauge("dws_sender_views", "Views of the trainer's tensors that are kept for receivers.",
               static_cast<double>(views.size()));
  scrape.Gauge("dws_sender_view_snapshot_bytes", "Memory of the snapshots of all views.",
               snapshot_bytes);
  scrape.Gauge("dws_sender_view_retained_bytes", "Bytes of the retained deltas of all views.",
               retained_bytes);
}

}  // namespace

void ShowSender(Metrics& registry, SenderStates states) {
  registry.OnCollect([states = std::move(states)](Scrape& scrape) {
    const RankStatePtr rank = states.hub->Current();
    const std::vector<RetainedVersionPtr> versions =
        rank == nullptr ? std::vector<RetainedVersionPtr>() : rank->log->All();
    if (!versions.empty()) ShowNewest(scrape, *rank, *versions.back());
    scrape.Gauge("dws_sender_newest_version", "The newest published version; 0: none.",
                 versions.empty() ? 0 : static_cast<double>(versions.back()->version.value()));
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
    scrape.Gauge("dws_sender_kept_bytes",
                 "Memory of what full versions have overwritten and readers have yet to read.",
                 rank == nullptr ? 0 : static_cast<double>(rank->snapshot->reads().held_bytes()));
    scrape.Gauge("dws_sender_trainer_present", "1 while a trainer is registered.",
                 states.trainer_present() ? 1 : 0);
    ShowViews(scrape, states.hub->Views());
    for (const auto& sink : *states.sinks) sink->Show(scrape);
  });
}

}  // namespace dws
