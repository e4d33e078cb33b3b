// dws-sender as an object: makes the parts, wires them, stops them in order. No flags, no signals.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/service/program/daemon.h"
#include "sender_daemon/app/sender_options.h"

namespace dws {

// Stop gives versions that are being captured or sealed its grace to be recorded and published.
// Errors are those of the parts.
Result<std::unique_ptr<Daemon>> StartSender(SenderOptions options);

}  // namespace dws
