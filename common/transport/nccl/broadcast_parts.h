// What a daemon needs to take part in broadcasts, loaded at run time: NCCL and a CUDA device.
#pragma once

#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/transport/nccl/broadcast_channel.h"

namespace dws {

// The options of both daemons.
struct BroadcastOptions {
  bool wanted = false;  // --nccl=auto
  std::string gpu;      // OpenCudaLanes
};

// nullopt: broadcasts are not wanted, or not available here. The daemon then runs without them, and
// its log says why.
std::optional<nccl::BroadcastChannel::Parts> OpenBroadcasts(const BroadcastOptions& options,
                                                            const Clock& clock);

}  // namespace dws
