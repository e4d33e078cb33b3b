// The ports a daemon got when it was given port 0, for whoever started it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"

namespace dws {

// Writes {"http": 40123, "sync": 40124} to `path`, atomically: a reader sees no file or all of it.
// Keys are plain words.
Status WritePortsFile(FileSystem& file_system, const std::string& path,
                      const std::map<std::string, uint16_t>& ports);

}  // namespace dws
