// Reads a rank's layout from a file: a dws.v1.RankLayout of proto/delta.proto in JSON.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/model/layout.h"

namespace dws::dwsctl {

// INVALID_ARGUMENT: not such JSON, not a valid layout, or too large. Others: as ByteFile.
Result<RankLayout> ReadLayoutFile(const std::string& path);

}  // namespace dws::dwsctl
