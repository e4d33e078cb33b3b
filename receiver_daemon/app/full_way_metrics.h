// The metrics of the ways by which full tensors arrived. docs/metrics.md lists the names.
#pragma once

#include "common/service/metrics/metrics.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"

namespace dws {

// Read at scrape time: `links` outlives the last scrape.
void AddFullWayMetrics(Metrics& metrics, const SyncLinks& links);

}  // namespace dws
