// The metrics that every daemon has, about its process and its build. DaemonServers adds them to
// the daemon's own.
#pragma once

#include "common/service/metrics/metrics.h"

namespace dws {

// dws_build_info and process_*.
void AddServiceMetrics(Metrics& metrics);

}  // namespace dws
