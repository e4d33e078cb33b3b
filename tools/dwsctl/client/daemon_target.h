// Turns the flags that name a daemon into an address that gRPC can dial.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/dwsctl/base/command.h"

namespace dws::dwsctl {

// The address of one daemon.
struct DaemonTarget {
  std::string grpc_target;  // "unix:/run/dws/receiver.sock", "127.0.0.1:7700"
  std::string text;         // the same for messages
  bool local = false;       // a unix socket: no TLS
};

// INVALID_ARGUMENT: both an address and a socket, in the flags or in the environment; an address
// that is not host:port; or neither, and `run_dir` has several sockets (the message lists them).
// NOT_FOUND: no socket at that path or in `run_dir`. PERMISSION_DENIED: this user may not use the
// socket or the folder.
Result<DaemonTarget> FindDaemon(const TargetFlags& flags);

// Like FindDaemon, for several daemons; if none is given, returns that of the environment, or else
// all sockets in `run_dir`.
Result<std::vector<DaemonTarget>> FindDaemons(const std::vector<std::string>& addresses,
                                              const std::vector<std::string>& sockets,
                                              const std::string& run_dir);

}  // namespace dws::dwsctl
