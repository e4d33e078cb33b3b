// The metrics of a receiver that follows a folder. docs/metrics.md lists the names.
#pragma once

#include "common/service/metrics/metrics.h"
#include "receiver_daemon/follower/slime_follower.h"

namespace dws {

// `follower` outlives the last scrape.
void AddFollowerMetrics(Metrics& metrics, const SlimeFollower& follower);

}  // namespace dws
