// The metrics of the sources that bytes came from. docs/metrics.md lists the names.
#pragma once

#include "common/service/metrics/metrics.h"
#include "common/sources/source_chain.h"

namespace dws {

// Read at scrape time: `sources` outlives the last scrape.
void AddSourceMetrics(Metrics& metrics, const SourceChain& sources);

}  // namespace dws
