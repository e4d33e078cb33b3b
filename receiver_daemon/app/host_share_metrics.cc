#include "receiver_daemon/app/host_share_metrics.h"

namespace dws {

void AddHostShareMetrics(Metrics& metrics, const HostShare* share) {
  // Shown without a share too, so that a dashboard of all receivers finds them.
  metrics.OnCollect([share](Scrape& scrape) {
    const HostShare::Totals totals = share != nullptr ? share->totals() : HostShare::Totals();
    constexpr const char* kHelp =
        "Bytes of deltas in --host-share: those that this receiver took, and those it left there.";
    scrape.Counter("dws_receiver_host_share_bytes_total", kHelp,
                   static_cast<double>(totals.read_bytes), {{"kind", "read"}});
    scrape.Counter("dws_receiver_host_share_bytes_total", kHelp,
                   static_cast<double>(totals.written_bytes), {{"kind", "written"}});
    scrape.Counter("dws_receiver_host_share_failures_total",
                   "Deltas that --host-share could not give or take.",
                   static_cast<double>(totals.failures));
  });
}

}  // namespace dws
