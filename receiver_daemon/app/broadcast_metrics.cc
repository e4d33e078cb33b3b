#include "receiver_daemon/app/broadcast_metrics.h"

namespace dws {

void AddBroadcastMetrics(Metrics& metrics, const SyncLinks& links) {
  // The links keep the counts, so a broadcast does not depend on metrics.
  metrics.OnCollect([&links](Scrape& scrape) {
    const SyncLinks::Broadcasts totals = links.BroadcastTotals();
    constexpr const char* kHelp =
        "Objects whose broadcast began, by whether they arrived undamaged.";
    scrape.Counter("dws_receiver_broadcasts_total", kHelp, static_cast<double>(totals.received),
                   {{"outcome", "received"}});
    scrape.Counter("dws_receiver_broadcasts_total", kHelp, static_cast<double>(totals.failed),
                   {{"outcome", "failed"}});
    scrape.Counter("dws_receiver_broadcast_bytes_total",
                   "Bytes of objects that arrived by broadcast.",
                   static_cast<double>(totals.received_bytes));
    scrape.Gauge("dws_receiver_broadcast_epochs",
                 "Senders whose epoch of broadcasts this receiver has joined.",
                 static_cast<double>(totals.joined));
  });
}

}  // namespace dws
