// The metrics that every daemon has, about its process, its build and whether it is ready.
// DaemonServers adds them to the daemon's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "common/service/lifecycle.h"
#include "common/service/metrics/metrics.h"

namespace dws {

// The sources from which these metrics read their values during a scrape.
struct ServiceSources {
  const Lifecycle* lifecycle = nullptr;  // not owned
  std::function<bool()> draining;
  // When the daemon's certificate expires, in seconds since 1970; nullopt without TLS.
  std::function<std::optional<int64_t>()> certificate_expiry;
  size_t insecure_channels = 0;  // parts that use TCP without TLS (DaemonServers)
};

// dws_build_info, dws_ready, dws_draining, dws_insecure_channels,
// dws_tls_certificate_expiry_timestamp_seconds and process_*. The objects that `sources` refers to
// outlive the last Text.
void AddServiceMetrics(Metrics& metrics, ServiceSources sources);

}  // namespace dws
