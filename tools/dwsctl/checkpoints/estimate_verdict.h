// What an estimate comes to: how a version like this one would best be sent, and what that saves.
#pragma once

#include <cstdint>
#include <string_view>

#include "tools/checkpoint/estimate.h"
#include "tools/dwsctl/base/bandwidth.h"

namespace dws::dwsctl {

enum class SentAs : uint8_t { kNothing, kFull, kFast, kWan };

// "nothing", "full", "DWS fast", "DWS wan"
std::string_view ToString(SentAs sent);

// For one speed of the link.
struct Verdict {
  SentAs sent = SentAs::kNothing;
  uint64_t bytes = 0;
  double seconds = 0;  // of the transfer
};

// Decides like the daemons: in full if a delta would be about as large, class-split on slow links,
// otherwise small and cheap to apply. Pure.
Verdict VerdictAt(const checkpoint::Estimate& estimate, const Bandwidth& bandwidth);

// What full tensors take by the way `device`: from the GPU of a trainer to that of an engine on the
// same host.
struct DeviceWay {
  uint64_t bytes = 0;       // read from the sender's copy, over NVLink or within one GPU
  uint64_t copy_bytes = 0;  // the sender's copy, on the trainer's GPU
  // On the GPU of an engine that runs, until the commit; --staging-bytes must allow it for each
  // trainer rank. An engine that joins needs none.
  uint64_t staging_bytes = 0;
};
DeviceWay DeviceWayOf(const checkpoint::Estimate& estimate);

}  // namespace dws::dwsctl
