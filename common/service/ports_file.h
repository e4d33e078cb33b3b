// Reports the ports that the kernel assigned for port 0 to the process that started the daemon.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"

namespace dws {

// Writes {"http": 40123, "sync": 40124} to `path`, atomically: a reader sees either no file or the
// whole file. Keys have only lower-case letters and underscores.
Status WritePortsFile(FileSystem& file_system, const std::string& path,
                      const std::map<std::string, uint16_t>& ports);

}  // namespace dws
