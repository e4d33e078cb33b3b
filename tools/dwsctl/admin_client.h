// One call to a daemon's AdminService.
#pragma once

#include <chrono>

#include "common/base/status.h"
#include "proto/admin.pb.h"
#include "tools/dwsctl/daemon_target.h"

namespace dws::dwsctl {

// UNAVAILABLE: nobody answers there. DEADLINE_EXCEEDED: not within `timeout`. Otherwise the
// daemon's own error. Every message names the target and says what to look at.
Result<v1::StatusReply> FetchStatus(const DaemonTarget& target, std::chrono::milliseconds timeout);

}  // namespace dws::dwsctl
