// The metrics of the objects that receivers of one host share. docs/metrics.md lists the names.
#pragma once

#include "common/service/metrics/metrics.h"
#include "receiver_daemon/transfer/host/host_share.h"

namespace dws {

// Read at scrape time: `share` outlives the last scrape; null: there is none, all are 0.
void AddHostShareMetrics(Metrics& metrics, const HostShare* share);

}  // namespace dws
