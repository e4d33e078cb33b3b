// From the flags that name a daemon to an address gRPC can dial.
#pragma once

#include <string>

#include "common/base/status.h"
#include "tools/dwsctl/command.h"

namespace dws::dwsctl {

struct DaemonTarget {
  std::string grpc_target;  // "unix:/run/dws/receiver.sock", "127.0.0.1:7700"
  std::string text;         // the same for messages
};

// INVALID_ARGUMENT: both an address and a socket; an address that is not host:port; or neither, and
// `run_dir` holds several sockets (the message lists them). NOT_FOUND: no socket at that path or in
// `run_dir`.
Result<DaemonTarget> FindDaemon(const TargetFlags& flags);

}  // namespace dws::dwsctl
