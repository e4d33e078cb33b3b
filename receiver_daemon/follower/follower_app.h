// The dws-receiver that follows a folder of versions: makes the parts, wires them, stops them in
// order. No flags, no signals. receiver_app.h is the one that has senders.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/service/program/daemon.h"
#include "receiver_daemon/options/receiver_options.h"

namespace dws {

// Stop completes a version that is being applied: it cannot be left halfway. Its load gets the
// grace; a load that is given up leaves the engine paused. INVALID_ARGUMENT: a bad option; names
// its flag. Other errors are those of the parts.
Result<std::unique_ptr<Daemon>> StartFollower(const ReceiverOptions& options);

}  // namespace dws
