// The metrics every daemon has: its process, its build, and whether it is ready. Both daemons'
// mains add them to their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "common/service/lifecycle.h"
#include "common/service/metrics/metrics.h"

namespace dws {

struct ServiceSources {
  const Lifecycle* lifecycle = nullptr;  // not owned
  std::function<bool()> draining;
  // When the daemon's own certificate ends, in seconds since 1970; nullopt without TLS.
  std::function<std::optional<int64_t>()> certificate_expiry;
  size_t insecure_channels = 0;  // what speaks TCP without TLS (DaemonServers)
};

// dws_build_info, dws_ready, dws_draining, dws_insecure_channels,
// dws_tls_certificate_expiry_timestamp_seconds and process_*. What `sources` names outlives the
// last Text.
void AddServiceMetrics(Metrics& metrics, ServiceSources sources);

}  // namespace dws
