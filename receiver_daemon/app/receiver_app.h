// dws-receiver as an object: makes the parts, wires them, stops them in order. No flags, no
// signals.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/service/program/daemon.h"
#include "receiver_daemon/options/receiver_options.h"

namespace dws {

// Stop first ends a commit in progress: a commit that waits for the engine gets its grace, a commit
// that writes completes its writes. Engines continue with the version they have. INVALID_ARGUMENT:
// a bad option; the message names its flag. Other errors are those of the parts.
Result<std::unique_ptr<Daemon>> StartReceiver(const ReceiverOptions& options);

}  // namespace dws
