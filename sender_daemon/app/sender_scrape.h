// The metrics that are read from the sender's parts at scrape time. docs/metrics.md lists the
// names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "common/service/metrics/metrics.h"
#include "sender_daemon/publish/version_sink.h"
#include "sender_daemon/serve/receiver_hub.h"

namespace dws {

// `hub` and `sinks` outlive the last scrape; so does what the functions use.
struct SenderStates {
  const ReceiverHub* hub = nullptr;
  const VersionSinks* sinks = nullptr;
  std::function<bool()> trainer_present;
  uint64_t retain_bytes_max = 0;
  size_t retain_versions_max = 0;
};

// From now on every scrape of `registry` shows these states.
void ShowSender(Metrics& registry, SenderStates states);

}  // namespace dws
