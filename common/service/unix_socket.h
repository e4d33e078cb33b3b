// Socket files: what both sockets of a daemon do before they bind and after.
#pragma once

#include <string>

#include "common/base/status.h"

namespace dws {

// Makes `path` free for bind(2): removes a socket file that nobody listens on. OK when there is
// none. `type` is SOCK_STREAM or SOCK_SEQPACKET. INVALID_ARGUMENT: the path does not fit a socket
// address (107 bytes). FAILED_PRECONDITION: somebody listens on it, or it is something else than a
// socket.
Status ClearSocketPath(const std::string& path, int type);

// Mode 0660: the daemon's user and group.
Status RestrictSocket(const std::string& path);

}  // namespace dws
