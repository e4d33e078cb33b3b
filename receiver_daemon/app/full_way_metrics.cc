#include "receiver_daemon/app/full_way_metrics.h"

#include <string>

namespace dws {

void AddFullWayMetrics(Metrics& metrics, const SyncLinks& links) {
  // The links keep the counts, so a transfer does not depend on metrics.
  metrics.OnCollect([&links](Scrape& scrape) {
    const std::vector<FullWays::View> views = links.FullWayViews();
    for (const FullWay way : kFullWays) {
      uint64_t bytes = 0;
      for (const FullWays::View& view : views) bytes += view.bytes[static_cast<size_t>(way)];
      scrape.Counter("dws_receiver_full_way_bytes_total",
                     "Bytes of full tensors from senders, by the way on which they came.",
                     static_cast<double>(bytes), {{"way", std::string(ToString(way))}});
    }
  });
}

}  // namespace dws
