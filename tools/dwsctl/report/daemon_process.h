// The process of a daemon on this machine, as /proc shows it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace dws::dwsctl {

// The process that listens on a unix socket. UNAVAILABLE: nobody does, or it is in a container
// whose processes this one does not see.
Result<pid_t> ListenerOf(const std::string& socket);

// The first `bytes_max` of a file of /proc or /sys. Errors as ErrnoError.
Result<std::string> ReadPseudoFile(const std::string& path, size_t bytes_max);

// The last `bytes_max` of a regular file, from the beginning of a line. Errors as ErrnoError;
// FAILED_PRECONDITION: it is no regular file.
Result<std::string> ReadTail(const std::string& path, size_t bytes_max);

// The parts of /proc/PID/cmdline and /proc/PID/environ.
std::vector<std::string> SplitAtZeros(std::string_view text);

// The systemd unit in /proc/PID/cgroup: "dws-sender@0.service". "": there is none.
std::string UnitOf(std::string_view cgroup);

}  // namespace dws::dwsctl
