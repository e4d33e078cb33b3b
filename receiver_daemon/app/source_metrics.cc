// The chain keeps the counts, so a transfer does not depend on metrics.
#include "receiver_daemon/app/source_metrics.h"

#include <string>

namespace dws {

void AddSourceMetrics(Metrics& metrics, const SourceChain& sources) {
  metrics.OnCollect([&sources](Scrape& scrape) {
    for (const SourceChain::Total& total : sources.totals()) {
      scrape.Counter("dws_receiver_source_bytes_total",
                     "Bytes of deltas and of full tensors, by the source that brought them.",
                     static_cast<double>(total.bytes),
                     {{"content", std::string(ToString(total.content))},
                      {"source", std::string(total.source)}});
    }
  });
}

}  // namespace dws
